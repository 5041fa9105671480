"""What is waited for stands still: an engine, a host, a keeper, a launcher, a folder."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.runs.folder import RunFolder
from launcher.targets import process_table
from launcher.targets.hosts import nodes
from launcher.targets.hosts.program import messages, processes, requests
from launcher.targets.hosts.program.node_state import read_state
from launcher.targets.hosts.ssh import session as ssh_session
from tests.launcher.runner import WAITING, Runner
from tests.launcher.test_standstill import (
    freeze,
    host,
    open_ssh,
    put_first,
    soon,
)
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]


def test_a_host_that_never_says_its_first_word_is_not_waited_for(tmp_path, monkeypatch, host):
    monkeypatch.setattr(ssh_session, "OPEN_LIMIT_S", 0.5)
    client = open_ssh(tmp_path, monkeypatch, "[ $2 = -O ] && exit 255; exec sleep 600")
    with soon(), pytest.raises(TargetError, match="gpu1"):
        client.open(host)


DOCKER = """#!/bin/sh
case "$1" in
save) {save};;
load) {load};;
image) echo other;;
esac
"""


def living() -> set[int]:
    """The processes that this one has started, and that have not ended."""
    children = psutil.Process().children()
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize(
    ("save", "load"),
    [("exec sleep 600", "cat"), ("head -c 9000000 /dev/zero", "exec sleep 600")],
    ids=["engine here", "engine there"],
)
def test_an_image_that_gets_stuck_on_its_way_is_an_error(tmp_path, monkeypatch, host, save, load):
    put_first(monkeypatch, tmp_path / "docker", "docker", DOCKER.format(save=save, load=load))
    monkeypatch.setattr(nodes, "ENGINE_SILENCE_S", 1.0)
    monkeypatch.setattr(nodes, "PROVIDE_LIMIT_S", 1.0)
    image = nodes.Image(name="i", id="own")
    before, ssh = living(), open_ssh(tmp_path, monkeypatch)
    with ssh.open(host) as session, soon(), pytest.raises(TargetError, match="gpu1"):
        nodes.provide_image(image, ssh, session)
    assert living() <= before


# -- a keeper ----------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a keeper of a node that runs ``argv``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        spec = messages.KeeperSpec(
            run_id="standing",
            node_index=0,
            node_dir=str(tmp_path / "node"),
            argv=list(argv),
            cwd="/",
            unset=[],
            env={},
            secrets={},
            detached=True,
            stop_grace_s=1,
        )
        (tmp_path / "node").mkdir(exist_ok=True)
        command = [sys.executable, "-m", "launcher.targets.hosts.program", "keep"]
        env = {**os.environ, protocol.RUN_ID: "standing", protocol.NODE_INDEX: "0"}
        env[processes.KEEPER] = "1"
        keeper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env=env)
        started.append(keeper)
        keeper.stdin.write(spec.to_json().encode())
        keeper.stdin.close()
        wait_until(lambda: read_state(tmp_path / "node").state != "missing")
        return keeper

    yield start
    for keeper in started:
        keeper.kill()
        keeper.wait()


def test_a_keeper_that_is_stopped_does_not_hold_up_a_stop(tmp_path, kept):
    keeper = kept("sleep", "600")
    os.kill(keeper.pid, signal.SIGSTOP)
    reaper = threading.Thread(target=keeper.wait, daemon=True)
    reaper.start()
    with soon():
        requests.end_nodes("standing", None, 0.5, in_containers=False)
    assert processes.find("standing") == ()


# -- a launcher ----------------------------------------------------------------------------------


def is_up(launcher: Runner) -> bool:
    return bool(list((launcher.folder / "runs").glob("*-*/up-0")))


def test_a_run_whose_launcher_is_frozen_is_stopped_at_once_and_the_launcher_named(launcher):
    launcher.write(WAITING)
    process = launcher.start("run", "job.yaml", "--on", "local")
    try:
        wait_until(lambda: is_up(launcher))
        freeze(process.pid)
        with soon():
            done = launcher("stop", *launcher.run_ids(), "--grace", "1")
        assert done.returncode == 0
        assert f"kill -9 {process.pid}" in done.stderr
        assert launcher.processes() == [process.pid] or launcher.processes() == []
        assert launcher.outcome["cause"] == "stop-requested"
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 143
    finally:
        process.kill()
        process.communicate()


def test_a_detached_run_whose_folder_is_removed_ends(launcher):
    launcher.write(WAITING)
    assert launcher("run", "job.yaml", "--on", "local", "--detach").returncode == 0
    wait_until(lambda: is_up(launcher))
    (run_id,) = launcher.run_ids()
    follower = RunFolder(launcher.folder / "runs" / run_id).launcher_pid()
    assert follower is not None
    shutil.rmtree(launcher.folder / "runs" / run_id)
    try:
        wait_until(lambda: not process_table.find(**{protocol.RUN_ID: run_id}))
        wait_until(lambda: not psutil.pid_exists(follower))
    finally:
        process_table.send(
            (follower, *process_table.find(**{protocol.RUN_ID: run_id})), signal.SIGKILL
        )
    assert not (launcher.folder / "runs" / run_id / protocol.OUTCOME_FILE).exists()
