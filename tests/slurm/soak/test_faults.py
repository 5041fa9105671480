"""Runs on Slurm while a part of the cluster is away: each ends as it would, and leaves nothing."""

import re
import signal
import time

import pytest

from tests.disks import mounted
from tests.slurm.claims.test_faults import ELASTIC
from tests.slurm.typist import ALLOCATION, ARRAY, PREFIX
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
LOOK_S = 10.0
AWAY = "the run goes on"


def test_a_run_ends_well_while_the_controller_is_away(typist):
    typist.start_seen(ELASTIC + ARRAY, 2)
    typist.cluster.stop_controller()
    typist.wait_said(AWAY)
    typist.go()
    code, _, err = typist.finish()
    assert (code, err.count(AWAY)) == (0, 1), err
    typist.cluster.start_controller()
    typist.cluster.wait_idle()


def test_a_controller_that_is_restarted_just_before_the_nodes_start_costs_no_run(typist):
    setup = "slurm: {setup: ['touch $SLURM_SUBMIT_DIR/set-up; sleep 4']}\n"
    typist.write("pass", PREFIX + setup)
    typist.start("run", "job.yaml", "--on", "slurm")
    wait_until((typist.folder / "set-up").exists)
    typist.cluster.stop_controller()
    log = typist.run / f"slurm/{typist.job}.log"
    wait_until(lambda: "no node was started" in log.read_text())
    typist.cluster.start_controller()
    code, _, err = typist.finish(120)
    assert code == 0, err


def test_a_failing_line_of_the_setup_is_told_where_the_run_fails(typist):
    typist.write("raise SystemExit(3)", "slurm: {setup: [no-such-module load cuda]}\n" + PREFIX)
    told = typist.fails(1, "run", "job.yaml", "--on", "slurm")
    assert re.search(r"\d+\.log has: .*no-such-module: command not found", told), told


def test_in_steady_state_slurm_is_asked_every_ten_seconds_at_most(typist):
    typist.start_seen("nnodes: 1:3\n" + ARRAY, 3)
    wait_until(lambda: typist.cluster.calls["squeue"] >= 2)  # the first look comes earlier
    typist.cluster.clear_calls()
    begun = time.monotonic()
    time.sleep(2.2 * LOOK_S)
    lines = typist.cluster.call_lines()
    assert 1 <= len(lines) <= (time.monotonic() - begun) / LOOK_S + 1, lines
    assert set(typist.cluster.calls) == {"squeue"}
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    # The end needs no more of them, however many nodes there are.
    assert len(typist.cluster.call_lines()) <= len(lines) + 2, typist.cluster.call_lines()


def test_an_srun_that_starts_nothing_is_ended_by_stop(typist):
    own = typist.folder / "before/srun"
    own.parent.mkdir()
    own.write_text('#!/bin/bash\ntouch "$SLURM_SUBMIT_DIR/hangs"; exec sleep 1000\n')
    own.chmod(0o755)
    typist.env["PATH"] = f"{own.parent}:{typist.env['PATH']}"
    typist.write("", f"{PREFIX}{ELASTIC}{ALLOCATION}")
    typist.start("run", "job.yaml", "--on", "slurm")
    wait_until((typist.folder / "hangs").exists)
    (run_id,) = typist.run_ids()
    typist.well("stop", run_id)
    assert typist.finish()[0] == 143
    typist.cluster.wait_idle()


FILLING = """
import os, time
if os.environ["LAUNCHER_NODE_INDEX"] == "1":
    with open(os.path.join(os.environ["RUN_DIR"], "filler"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(65536))
time.sleep(600)
"""


@pytest.mark.mount
def test_a_full_shared_folder_ends_the_run_as_what_it_is(typist, tmp_path):
    with mounted(tmp_path / "small", "size=32m"):
        (tmp_path / "runs").symlink_to(tmp_path / "small")
        job = f"{PREFIX}nnodes: 2\n{ARRAY}"
        typist.write(FILLING, job)
        typist.start("run", "job.yaml", "--on", "slurm")
        code, _, err = typist.finish(120)
        assert code == 198, err
        assert (typist.outcome["cause"], "filler (" in err) == ("disk-full", True), err
        typist.cluster.wait_idle()


@pytest.mark.mount
def test_a_run_is_stopped_though_the_shared_folder_is_full(typist, tmp_path):
    with mounted(tmp_path / "small", "size=32m") as disk:
        (tmp_path / "runs").symlink_to(tmp_path / "small")
        typist.start_seen("nnodes: 2\n" + ALLOCATION, 2)
        disk.fill()
        typist.started[-1].send_signal(signal.SIGINT)
        code, _, err = typist.finish()
        assert (code, typist.outcome["cause"]) == (130, "interrupted"), err
        assert typist.cluster.queue() == []
        typist.cluster.wait_idle()
