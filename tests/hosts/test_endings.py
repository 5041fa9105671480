"""However a launcher ends, and whatever happens to a host: nothing of the run is left there."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from launcher.targets.hosts.program.node_state import FOLLOWED_S
from tests.hosts.places import Network
from tests.hosts.steps import Steps
from tests.hosts.test_doctor import held
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


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_launcher_that_ends_takes_its_nodes_along(typist: Typist, signum: signal.Signals) -> None:
    launcher = start_waiting(typist)
    launcher.send_signal(signum)
    assert launcher.wait(40) == 130
    wait_until(lambda: not any(h.commands() for h in typist.network.hosts))
    assert typist.outcome["reason"] == "interrupted"


@pytest.mark.slow  # a killed launcher shows the same in every CI
@pytest.mark.parametrize("engine", ["agent", "torchrun"])
def test_a_launcher_whose_network_is_cut_takes_its_nodes_along(
    typist: Typist, four_hosts: Network, engine: str
) -> None:
    launcher = start_waiting(typist, "--set", f"engine={engine}")
    four_hosts.set_client_link(up=False)
    try:
        wait_until(lambda: not any(h.commands() for h in typist.network.hosts))
        if engine == "torchrun":
            launcher.wait(60)
        for host in typist.network.hosts:
            # From inside: the host goes on seeing what is removed under its overlay.
            host.run("sh", "-c", "rm -f ~/.launcher/runs/*/up-*")
    finally:
        four_hosts.set_client_link(up=True)
    if engine == "agent":
        wait_until(lambda: is_up(typist) or launcher.poll() is not None)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(30)
        assert typist.outcome["reason"] == "stop-requested"
    else:
        assert typist.outcome["state"] == "failed"
    assert typist("stop", "latest").returncode == 0


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_host_that_loses_its_power_is_waited_for_and_its_node_started_again(
    typist: Typist, lost: int
) -> None:
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
    assert typist.outcome["reason"] == "stop-requested", stderr.decode()


@pytest.mark.slow
def test_under_torchrun_a_host_that_loses_its_power_is_a_lost_node(typist: Typist) -> None:
    launcher = start_waiting(typist, "--set", "engine=torchrun")
    typist.network.hosts[1].power_off()
    try:
        launcher.wait(60)
        assert typist.outcome["reason"] == "node-lost"
        assert "gpu2" in typist.outcome["detail"]
    finally:
        typist.network.hosts[1].start()
    typist("stop", "latest")


def test_two_runs_never_get_the_same_slots(typist: Typist) -> None:
    text = (typist.folder / "hosts.yaml").read_text().replace('"python"', '"slots": 1, "python"')
    (typist.folder / "hosts.yaml").write_text(text)
    launcher = start_waiting(typist, nodes=2)
    refused = typist("run", "job.yaml", "--nnodes", "3")
    assert refused.returncode == 3
    assert "gpu1: 1 of its 1 slots are held by root@" in refused.stderr
    with held(typist.network.hosts[3], gpus=[], slots=1):
        shown = typist("hosts").stdout.splitlines()
    assert "0 of 1 slots" in shown[1]
    assert "1 slots" in shown[1]
    assert shown[1].endswith("followed")
    assert "1 of 1 slots" in shown[3]
    assert "0 of 1 slots  other-0a1b2c node 0  anna@desk" in shown[4]
    assert shown[4].endswith("detached")
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(30)


@pytest.mark.slow
def test_a_detached_run_outlives_its_launcher_and_is_stopped_from_another_machine(
    typist: Typist, tmp_path_factory: pytest.TempPathFactory
) -> None:
    typist.write(WAITING)
    started = typist("run", "job.yaml", "--nnodes", "2", "--detach")
    assert started.returncode == 0, started.stderr
    run_id = started.stdout.strip()
    wait_until(lambda: is_up(typist))
    pid = json.loads((typist.folder / f"runs/{run_id}/launcher.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    # A followed run would end, as nobody hears its launcher: this one must not.
    time.sleep(FOLLOWED_S + 5)
    elsewhere = Typist(tmp_path_factory.mktemp("elsewhere"), typist.network)
    status = elsewhere("status", run_id)
    assert "node 1.0 on gpu2: running" in status.stdout, status.stderr
    assert "[1/1] up" in elsewhere("logs", run_id).stdout
    stopped = elsewhere("stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    assert elsewhere.outcome["reason"] == "stop-requested"


LATE = """
import os, pathlib, signal, time
run, rank = pathlib.Path(os.environ["RUN_DIR"]), os.environ["RANK"]
def end(signum, frame):
    if rank == "1":
        time.sleep(4)
        print("last word", (run / "up-0").exists(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
(run / ("up-" + rank)).touch()
while True:
    time.sleep(0.1)
"""


def share_home(typist: Typist) -> Path:
    """The hosts keep runs in one folder, as where their users have one home."""
    folder = typist.folder / "home"
    text = (typist.folder / "hosts.yaml").read_text()
    text = text.replace('"python"', f'"state_dir": "{folder}", "python"')
    (typist.folder / "hosts.yaml").write_text(text)
    return folder


@pytest.mark.slow  # the next test has hosts with one home
def test_hosts_with_one_home_lose_nothing_of_the_node_that_ends_last(typist: Typist) -> None:
    home = share_home(typist)
    typist.write(LATE)
    launcher = typist.start("run", "job.yaml", "--nnodes", "2")
    wait_until(lambda: len(list(home.glob("runs/*/up-*"))) == 2)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=60)
    assert b"[1/1] last word True" in out, err.decode()
    assert (typist.folder / "runs/latest/nodes/1/0/outcome.json").exists()
    assert list(home.glob("runs/*")) == []


@pytest.mark.slow
def test_a_run_on_hosts_with_one_home_is_stopped_on_all_of_them_from_elsewhere(
    typist: Typist, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = share_home(typist)
    typist.write(WAITING)
    started = typist("run", "job.yaml", "--nnodes", "2", "--detach")
    assert started.returncode == 0, started.stderr
    run_id = started.stdout.strip()
    wait_until(lambda: len(list(home.glob("runs/*/up-*"))) == 2)
    pid = json.loads((typist.folder / f"runs/{run_id}/launcher.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    elsewhere = Typist(tmp_path_factory.mktemp("elsewhere"), typist.network)
    (elsewhere.folder / "hosts.yaml").write_text((typist.folder / "hosts.yaml").read_text())
    stopped = elsewhere("stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    assert not any(host.commands() for host in typist.network.hosts)


@pytest.mark.slow
def test_a_host_without_power_is_scaled_away_and_the_others_go_on(typist: Typist) -> None:
    run = Steps(typist, "python")
    started = typist("run", "job.yaml", "--nnodes", "1:2", "--detach")
    assert started.returncode == 0, started.stderr
    run.wait_for(0, 1)
    typist.network.hosts[1].power_off()
    try:
        run.wait_for(0)
        assert typist("scale", run.run_id, "1").returncode == 0
        time.sleep(FOLLOWED_S)
        run.wait_for(0)
    finally:
        typist.network.hosts[1].start()
    assert typist("stop", "latest").returncode == 0


def test_what_a_run_left_on_a_host_that_was_off_is_cleaned_once_it_is_back(typist: Typist) -> None:
    launcher = start_waiting(typist)
    host = typist.network.hosts[1]
    host.power_off()
    launcher.send_signal(signal.SIGINT)
    _, told = launcher.communicate(timeout=90)
    host.start()
    assert b"CHECKPOINT_DIR is each node's own disk" in told
    (run_id,) = typist.run_ids()
    assert host.run("ls", f"{STATE}/runs").split() == [run_id]
    time.sleep(FOLLOWED_S)  # a host here keeps its clock when its power is off
    done = typist("clean", "--hosts", "hosts.yaml", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"{run_id}  {host.name}" in done.stdout
    assert "removed 1 of 1" in done.stderr
    assert host.run("ls", f"{STATE}/runs").split() == []
    assert typist.outcome, "the run stays here"


def test_ranks_that_would_resume_from_their_own_hosts_are_refused(typist: Typist) -> None:
    typist.write("import os\nprint(os.environ['CHECKPOINT_DIR'])\n")
    refused = typist("run", "job.yaml", "--nnodes", "1:2")
    assert refused.returncode == 2
    assert "CHECKPOINT_DIR is each node's own disk, and nnodes is 1:2" in refused.stderr
    meant = typist("run", "job.yaml", "--nnodes", "1:2", "--set", "checkpoint_dir=ephemeral")
    assert meant.returncode == 0, meant.stderr
    assert "own disk" not in meant.stderr
