"""However a launcher ends, and whatever happens to a host: nothing of the run is left there."""

import signal
import time

import pytest

from launcher.targets.hosts.program.node_state import FOLLOWED_S
from tests.hosts.typist import STATE, Typist
from tests.launcher.runner import WAITING
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts


def is_up(typist: Typist, nodes: int = 2) -> bool:
    """Whether every host's script has begun, seen on the hosts."""
    found = [p for h in typist.network.hosts for p in h.home.glob(".launcher/runs/*/up-*")]
    return len(found) == nodes


def start_waiting(typist: Typist, *options: str, nodes: int = 2):  # type: ignore[no-untyped-def]
    typist.write(WAITING)
    launcher = typist.start("run", "job.yaml", "--nnodes", str(nodes), *options)
    wait_until(lambda: is_up(typist, nodes) or launcher.poll() is not None)
    assert launcher.poll() is None, launcher.stderr.read()
    return launcher


def test_a_launcher_that_ends_takes_its_nodes_along(typist):
    launcher = start_waiting(typist)
    launcher.send_signal(signal.SIGHUP)
    assert launcher.wait(40) == 130
    wait_until(lambda: not any(h.commands() for h in typist.network.hosts))
    assert typist.outcome["cause"] == "interrupted"


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_loses_its_power_is_waited_for_and_its_node_started_again(typist, lost):
    launcher = start_waiting(typist)
    host = typist.network.hosts[lost]
    (up,) = host.home.glob(".launcher/runs/*/up-*")
    host.power_off()
    up.unlink()
    host.start()
    wait_until(lambda: is_up(typist) or launcher.poll() is not None)
    launcher.send_signal(signal.SIGTERM)
    _, stderr = launcher.communicate(timeout=60)
    assert f"node {lost} is gone".encode() in stderr
    assert b"replacing it, the others wait for it" in stderr
    assert typist.outcome["cause"] == "stop-requested", stderr.decode()


def test_what_a_run_left_on_a_host_that_was_off_is_cleaned_once_it_is_back(typist):
    launcher = start_waiting(typist)
    host = typist.network.hosts[1]
    host.power_off()
    seen, wrong = typist.start("status", "latest").communicate(timeout=60)
    assert f"node 0 on {typist.network.hosts[0].name}: running" in seen.decode()
    assert f"node 1 on {host.name}: missing; {host.name}: nothing listens" in seen.decode()
    assert f"error: {host.name}: ".encode() in wrong
    launcher.send_signal(signal.SIGINT)
    _, told = launcher.communicate(timeout=90)
    host.start()
    assert b"CHECKPOINT_DIR is each node's own disk" in told
    (run_id,) = typist.run_ids()
    assert host.run("ls", f"{STATE}/runs").split() == [run_id]
    time.sleep(FOLLOWED_S)  # a host here keeps its clock when its power is off
    done = typist.well("clean", "--hosts", "hosts.yaml", "--yes")
    assert f"{run_id}  {host.name}" in done.stdout
    assert "removed 1 of 1" in done.stderr
    assert host.run("ls", f"{STATE}/runs").split() == []
    assert typist.outcome, "the run stays here"


def test_ranks_that_would_resume_from_their_own_hosts_are_refused(typist):
    typist.write("import os\nprint(os.environ['CHECKPOINT_DIR'])\n")
    told = typist.fails(2, "run", "job.yaml", "--nnodes", "1:2")
    assert "CHECKPOINT_DIR is each node's own disk, and nnodes is 1:2" in told
    meant = typist.well("run", "job.yaml", "--nnodes", "1:2", "--set", "checkpoint_dir=ephemeral")
    assert "own disk" not in meant.stderr
