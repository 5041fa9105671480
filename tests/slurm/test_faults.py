"""Runs on Slurm while a part of the cluster is away: each ends as it would, and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.disks import mounted
from tests.slurm.cluster import wait_until
from tests.slurm.typist import ALLOCATION, ARRAY, PREFIX, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SLOW = pytest.mark.slow
ELASTIC = "nnodes: 1:2\n"
BOTH = pytest.mark.parametrize(
    "kind",
    [pytest.param(ALLOCATION, id="allocation", marks=SLOW), pytest.param(ARRAY, id="array")],
)
LOOK_S = 10.0


AWAY = "the run goes on"


def test_a_run_ends_well_while_the_controller_is_away(typist: Typist) -> None:
    typist.start_seen(ELASTIC + ARRAY, 2)
    typist.cluster.stop_controller()
    typist.wait_said(AWAY)
    typist.go()
    code, _, err = typist.finish()
    assert (code, err.count(AWAY)) == (0, 1), err
    typist.cluster.start_controller()
    typist.cluster.wait_idle(90)


@pytest.mark.slow
@SLOW
def test_a_controller_that_comes_back_is_told_once(typist: Typist) -> None:
    typist.start_seen(ELASTIC + ARRAY, 2)
    typist.cluster.stop_controller()
    typist.wait_said(AWAY)
    typist.cluster.start_controller()
    typist.wait_said("the controller answers again")
    typist.go()
    code, _, err = typist.finish()
    assert (code, err.count(AWAY), err.count("the controller answers again")) == (0, 1, 1), err


@pytest.mark.slow
@SLOW
def test_a_run_ends_well_while_munge_is_down_on_the_login_node(typist: Typist) -> None:
    munge, conf = typist.cluster.folder / "munge", typist.cluster.folder / "slurm.conf"
    login, own = munge / "login", typist.folder / "slurm.conf"
    login.symlink_to(munge / "socket")
    own.write_text(conf.read_text().replace(f"={munge}/socket", f"={login}"))
    typist.env["SLURM_CONF"] = str(own)
    try:
        typist.start_seen(ELASTIC + ARRAY, 2)
        login.unlink()
        typist.wait_said(AWAY)
        assert "unge" in typist.said.read_text()
        typist.go()
        code, _, err = typist.finish()
        assert (code, err.count(AWAY)) == (0, 1), err
    finally:
        login.unlink(missing_ok=True)


def test_a_job_that_was_submitted_and_not_recorded_is_found_by_its_comment(typist: Typist) -> None:
    """As after a launcher that was killed between sbatch's answer and its own note of it."""
    typist.write("pass", "name: tiny\nslurm: {extra: [--begin=now+1hour]}\n")
    assert typist("run", "job.yaml", "--on", "slurm", "--detach").returncode == 0
    (run_id,) = typist.run_ids()
    (record,) = (typist.run / "slurm").glob("*.job")
    os.kill(typist.status(run_id)["launcher_pid"], signal.SIGKILL)
    wait_until(lambda: typist.status(run_id)["launcher_pid"] is None)
    record.unlink()
    assert typist.status(run_id)["state"] == "running"
    assert record.exists()
    record.unlink()
    stopped = typist("stop", run_id)
    assert (stopped.returncode, typist.cluster.queue()) == (0, []), stopped.stderr


@BOTH
def test_a_run_whose_launcher_was_killed_is_found_and_stopped(typist: Typist, kind: str) -> None:
    run_id = typist.start_seen(ELASTIC + kind, 2)
    typist.started[-1].send_signal(signal.SIGKILL)
    typist.started[-1].wait(10)
    listed = json.loads(typist("ps", "--json").stdout)
    assert [row["run_id"] for row in listed] == [run_id]
    assert typist.status(run_id)["state"] in ("running", "orphaned")
    assert typist("report", run_id).returncode == 0
    stopped = typist("stop", run_id)
    assert (stopped.returncode, "stop-requested" in stopped.stderr) == (0, True), stopped.stderr
    assert typist.status(run_id)["state"] == "stopped"
    assert typist.cluster.queue() == []
    assert typist.left() == []


@pytest.mark.slow
@SLOW
def test_logs_follow_a_run_whose_launcher_was_killed_to_its_end(typist: Typist) -> None:
    run_id = typist.start_seen(ELASTIC + ARRAY, 2)
    typist.started[-1].send_signal(signal.SIGKILL)
    typist.started[-1].wait(10)
    following = typist.start("logs", "--follow", run_id)
    time.sleep(1)
    assert following.poll() is None
    typist.go()
    code, _, err = typist.finish(60)
    assert code == 0, err
    assert typist.status(run_id)["state"] == "succeeded"


@pytest.mark.slow  # What nodes could not tell the controller, they tell it a minute later.
def test_logs_follow_a_run_while_the_controller_is_away(typist: Typist) -> None:
    run_id = typist.start_seen(ELASTIC + ARRAY, 2)
    typist.started[-1].send_signal(signal.SIGKILL)
    typist.started[-1].wait(10)
    typist.cluster.stop_controller()
    try:
        typist.start("logs", "--follow", run_id)
        with pytest.raises(subprocess.TimeoutExpired):
            typist.started[-1].wait(10)
        typist.go()
        code, _, err = typist.finish()
    finally:
        typist.cluster.start_controller()
    assert (code, typist.outcome["state"]) == (0, "succeeded"), err
    typist.cluster.wait_idle(90)


@pytest.mark.slow
def test_in_steady_state_slurm_is_asked_every_ten_seconds_at_most(typist: Typist) -> None:
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


def put_before(typist: Typist, name: str, script: str) -> None:
    """A program that is found instead of Slurm's; its script may use ``$real``."""
    folder = typist.folder / "before"
    folder.mkdir()
    program = folder / name
    real = shutil.which(name, path=typist.env["PATH"])
    program.write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
    program.chmod(0o755)
    typist.env["PATH"] = f"{folder}:{typist.env['PATH']}"


@pytest.mark.slow
@BOTH
def test_an_srun_that_starts_nothing_is_ended_by_stop(typist: Typist, kind: str) -> None:
    put_before(typist, "srun", 'touch "$SLURM_SUBMIT_DIR/hangs"; exec sleep 1000')
    typist.write("", f"{PREFIX}{ELASTIC}{kind}")
    typist.start("run", "job.yaml", "--on", "slurm")
    wait_until((typist.folder / "hangs").exists)
    (run_id,) = typist.run_ids()
    stopped = typist("stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    assert typist.finish()[0] == 143
    typist.cluster.wait_idle()


@pytest.mark.slow
@SLOW
def test_an_srun_that_outlives_its_agents_is_ended(typist: Typist) -> None:
    put_before(typist, "srun", '"$real" "$@"; exec sleep 1000')
    typist.start_seen("nnodes: 2\n" + ALLOCATION, 2)
    typist.go()
    code, _, err = typist.finish(90)
    assert code == 0, err
    typist.cluster.wait_idle(90)


STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(os.environ["RUN_DIR"], "seen-0-of-1").touch()
time.sleep(600)
"""


@pytest.mark.slow  # A task that ignores SIGTERM is killed KillWait later.
def test_a_second_interrupt_in_the_grace_tells_what_it_waits_for(typist: Typist) -> None:
    typist.write(STUBBORN, f"{PREFIX.replace('stop_grace_s: 5', 'stop_grace_s: 60')}{ALLOCATION}")
    typist.start("run", "job.yaml", "--on", "slurm")
    typist.wait_seen(range(1), 1)
    job = typist.job
    typist.started[-1].send_signal(signal.SIGINT)
    typist.wait_said("stopping (interrupted), at most 60 s; Ctrl-C again ends it at once")
    typist.started[-1].send_signal(signal.SIGINT)
    typist.wait_said(f"until Slurm has ended job {job}, at most 60 s; by hand: scancel {job}", 5)
    code, _, err = typist.finish()
    assert (code, typist.outcome["reason"]) == (130, "interrupted"), err
    assert typist.cluster.queue() == []
    assert typist.left() == []


FILLING = """
import os, time
if os.environ["LAUNCHER_NODE_INDEX"] == "1":
    with open(os.path.join(os.environ["RUN_DIR"], "filler"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(65536))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.mount
@BOTH
def test_a_full_shared_folder_ends_the_run_as_what_it_is(
    typist: Typist, tmp_path: Path, kind: str
) -> None:
    with mounted(tmp_path / "small", "size=32m"):
        (tmp_path / "runs").symlink_to(tmp_path / "small")
        job = f"{PREFIX}nnodes: 2\nagent: {{disk_free_limit_s: 3}}\n{kind}"
        typist.write(FILLING, job)
        typist.start("run", "job.yaml", "--on", "slurm")
        code, _, err = typist.finish(120)
        assert code == 198, err
        assert (typist.outcome["reason"], "most in filler (" in err) == ("disk-full", True), err
        typist.cluster.wait_idle()


@pytest.mark.slow
@SLOW
@pytest.mark.mount
def test_a_shared_folder_that_is_full_for_a_while_costs_only_lines(
    typist: Typist, tmp_path: Path
) -> None:
    with mounted(tmp_path / "small", "size=32m") as disk:
        (tmp_path / "runs").symlink_to(tmp_path / "small")
        typist.start_seen("nnodes: 2\n" + ALLOCATION, 2)
        disk.fill()
        time.sleep(12)
        assert typist.started[-1].poll() is None
        disk.free()
        typist.go()
        code, _, err = typist.finish(90)
        assert code == 0, err
        typist.cluster.wait_idle()


@pytest.mark.slow
@pytest.mark.mount
def test_a_run_is_stopped_though_the_shared_folder_is_full(typist: Typist, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=32m") as disk:
        (tmp_path / "runs").symlink_to(tmp_path / "small")
        typist.start_seen("nnodes: 2\n" + ALLOCATION, 2)
        disk.fill()
        typist.started[-1].send_signal(signal.SIGINT)
        code, _, err = typist.finish()
        assert (code, typist.outcome["reason"]) == (130, "interrupted"), err
        assert typist.cluster.queue() == []
        typist.cluster.wait_idle()
