"""However a launcher ends, and whatever happens to a host: nothing of the run is left there."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from launcher.targets.hosts.program.node_state import FOLLOWED_S
from tests.hosts.claims.test_endings import is_up, start_waiting
from tests.hosts.steps import Steps
from tests.hosts.typist import Typist
from tests.launcher.runner import WAITING
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("engine", ["agent", "torchrun"])
def test_a_launcher_whose_network_is_cut_takes_its_nodes_along(typist, four_hosts, engine):
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
        assert typist.outcome["cause"] == "stop-requested"
    else:
        assert typist.outcome["state"] == "failed"
    assert typist("stop", "latest").returncode == 0


def test_a_launcher_that_is_stopped_and_goes_on_starts_its_nodes_again_and_blames_nobody(
    typist, tmp_path_factory
):
    launcher = start_waiting(typist)
    (run_id,) = typist.run_ids()
    launcher.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not any(h.commands() for h in typist.network.hosts))
        told = typist("status", run_id).stdout
        assert told.startswith(f"{run_id}: RUNNING")
        assert "its launcher is stopped, as by Ctrl-Z: fg in its terminal, or kill -CONT" in told
        elsewhere = Typist(tmp_path_factory.mktemp("elsewhere"), typist.network)
        for command in ("status", "why"):
            told = elsewhere(command, run_id).stdout
            assert "running" in told.lower(), told
        assert "its launcher is not heard" in elsewhere("status", run_id).stdout
        for host in typist.network.hosts:
            host.run("sh", "-c", "rm -f ~/.launcher/runs/*/up-*")
    finally:
        launcher.send_signal(signal.SIGCONT)
    wait_until(lambda: is_up(typist) or launcher.poll() is not None)
    launcher.send_signal(signal.SIGTERM)
    _, stderr = launcher.communicate(timeout=60)
    assert b"this launcher did not run for" in stderr
    assert b"is gone" not in stderr
    assert b"does not answer" not in stderr
    assert typist.outcome["cause"] == "stop-requested"


def test_under_torchrun_a_host_that_loses_its_power_is_a_lost_node(typist):
    launcher = start_waiting(typist, "--set", "engine=torchrun")
    typist.network.hosts[1].power_off()
    try:
        launcher.wait(60)
        assert typist.outcome["cause"] == "node-lost"
        assert "gpu2" in typist.outcome["detail"]
    finally:
        typist.network.hosts[1].start()
    typist("stop", "latest")


def test_two_runs_never_get_the_same_slots(typist):
    text = (typist.folder / "hosts.yaml").read_text().replace('"python"', '"slots": 1, "python"')
    (typist.folder / "hosts.yaml").write_text(text)
    launcher = start_waiting(typist, nodes=2)
    told = typist.fails(3, "run", "job.yaml", "--nnodes", "3")
    assert "gpu1: 1 of its 1 slots are held by root@" in told
    shown = [line.split()[:5] for line in typist("hosts").stdout.splitlines()]
    assert [words[1:4:2] for words in shown[1:4]] == [["0", "1"], ["0", "1"], ["1", "1"]]
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(30)


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


def test_hosts_with_one_home_lose_nothing_of_the_node_that_ends_last(typist):
    home = share_home(typist)
    typist.write(LATE)
    launcher = typist.start("run", "job.yaml", "--nnodes", "2")
    wait_until(lambda: len(list(home.glob("runs/*/up-*"))) == 2)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=60)
    assert b"[1/1] last word True" in out, err.decode()
    assert (typist.folder / "runs/latest/nodes/1/0/outcome.json").exists()
    assert list(home.glob("runs/*")) == []


@pytest.mark.parametrize("one_home", [False, True])
def test_a_detached_run_outlives_its_launcher_and_is_stopped_from_another_machine(
    typist, tmp_path_factory, one_home
):
    home = share_home(typist) if one_home else None
    typist.write(WAITING)
    run_id = typist.well("run", "job.yaml", "--nnodes", "2", "--detach").stdout.strip()
    wait_until(lambda: len(list(home.glob("runs/*/up-*"))) == 2 if home else is_up(typist))
    pid = json.loads((typist.folder / f"runs/{run_id}/launcher.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    # A followed run would end, as nobody hears its launcher: this one must not.
    time.sleep(FOLLOWED_S + 5)
    elsewhere = Typist(tmp_path_factory.mktemp("elsewhere"), typist.network)
    (elsewhere.folder / "hosts.yaml").write_text((typist.folder / "hosts.yaml").read_text())
    status = elsewhere("status", run_id)
    assert "node 1 on gpu2: running" in status.stdout, status.stderr
    assert "[1/1] up" in elsewhere("logs", run_id).stdout
    elsewhere.well("stop", run_id)
    assert elsewhere.outcome["cause"] == "stop-requested"
    assert not any(host.commands() for host in typist.network.hosts)


def test_a_host_without_power_is_scaled_away_and_the_others_go_on(typist):
    run = Steps(typist, "python")
    typist.well("run", "job.yaml", "--nnodes", "1:2", "--detach")
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
