"""Faults by real means in the middle of an elastic run: it goes on, and ends with nothing left."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.places import Host, Network
from tests.hosts.steps import Steps
from tests.waiting import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
SKEW_S = 90


def test_a_host_without_sshd_or_that_stands_still_is_lost_and_joins_again(typist):
    run = Steps(typist, "python")
    run.follow()
    host = typist.network.hosts[1]
    host.stop_sshd()
    try:
        # It hears no launcher any more: the host ends its node itself.
        run.wait_for(0)
        wait_until(lambda: not host.commands())
    finally:
        host.start_sshd()
    run.wait_for(0, 1)
    host.signal_all(signal.SIGSTOP)
    try:
        run.wait_for(0)
    finally:
        host.signal_all(signal.SIGCONT)
    run.wait_for(0, 1)
    run.finish()


FILLING = """
import os, pathlib, time
pathlib.Path(os.environ["RUN_DIR"], "up-" + os.environ["RANK"]).touch()
while True:
    print("x" * 100_000, flush=True)
    time.sleep(0.01)
"""


def test_a_disk_that_fills_up_ends_the_run_and_leaves_nothing(small_disk, typist):
    typist.write(FILLING, "engine: agent\n")
    told = typist.fails(198, "run", "job.yaml", "--nnodes", "2")
    assert typist.outcome["state"] == "failed"
    assert typist.outcome["cause"] == "disk-full"
    assert "No space left on device" in told.partition("FAILED")[2]
    assert typist.outcome["failure"]["first"]["host"] == "gpu2"
    assert "the disk at /root/.launcher is full: " in typist.outcome["detail"], "not the launcher's"


# -- clocks ----------------------------------------------------------------------------------------

FAILING = """
import os, pathlib, sys, time
shared = pathlib.Path(os.environ["SHARED"])
if os.environ["RANK"] == "1":
    (shared / "failed").touch()
    raise ValueError("the first to fail")
while not (shared / "failed").exists():
    time.sleep(0.05)
time.sleep(1)
raise ValueError("the second to fail")
"""


@pytest.fixture
def host_behind(four_hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The first host, whose sessions have a wall clock that is late."""
    source = ROOT / "tests/launcher/agent/skewed_clock.c"
    library = tmp_path_factory.mktemp("clock") / "skewed_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    host = four_hosts.hosts[0]
    host.set_session_env(LD_PRELOAD=str(library), CLOCK_SKEW_S=str(-SKEW_S))
    yield host
    host.set_session_env()


@pytest.mark.cc
def test_a_report_names_the_first_cause_whatever_the_clocks_say(typist, host_behind):
    typist.write(FAILING, f"engine: agent\nenv: {{SHARED: '{typist.folder}'}}\n")
    done = typist.fails(1, "run", "job.yaml", "--nnodes", "2")
    first = typist.outcome["failure"]["first"]
    assert (first["host"], first["exception"]) == ("gpu2", "ValueError: the first to fail")
    assert f"gpu1 {SKEW_S}.0 s behind; times here are corrected" in done
    told = json.loads(typist("report", "--json").stdout)
    assert abs(told["clock_offsets_s"]["gpu1"] + SKEW_S) < 1
    assert all(-1 < moment["after_s"] < SKEW_S for moment in told["timeline"])
