"""What is waited for stands still: an engine, a cluster, a host, a keeper, a launcher, a folder."""

import contextlib
import json
import linecache
import os
import signal
import socket
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.agent.worker import guard
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import TargetError
from launcher.follow import tails
from launcher.runs.folder import RunFolder
from launcher.targets.docker import engine as docker_engine
from launcher.targets.docker.engine import Engine
from launcher.targets.docker_options import ContainerSettings
from launcher.targets.hosts import connection as host_line
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program import messages, requests
from launcher.targets.hosts.program.code_store import store_code
from launcher.targets.hosts.program.session import read_clock
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh import session as ssh_session
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import Session
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CLIENT = """#!/bin/sh
for word; do :; done
{before}
exec sh -c "$word"
"""
HANGS = "#!/bin/sh\nexec sleep 600\n"
WITHIN_S = 60.0
"""Less than what stands still here would take, and enough on a busy machine."""


@contextlib.contextmanager
def soon() -> Iterator[None]:
    began_at = time.monotonic()
    yield
    assert time.monotonic() - began_at < WITHIN_S


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def put_first(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


# -- a Docker engine ---------------------------------------------------------------------------


@pytest.fixture
def frozen_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that tells its version to each connection, and then says no more."""
    told = json.dumps({"ApiVersion": "1.41", "Version": "20.10"}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    open_: list[socket.socket] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "engine"))
    server.listen(64)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                open_.append(peer)
                if b"/version" in peer.recv(65536).split(b"\r\n")[0]:
                    peer.sendall(head % len(told) + told)

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'engine'}")
    monkeypatch.setattr(docker_engine, "REQUEST_TIMEOUT_S", 0.5)
    yield
    for one in (server, *open_):
        one.close()


@pytest.mark.usefixtures("frozen_engine")
def test_an_engine_that_stands_still_after_its_first_word_is_an_error():
    engine = Engine(SystemClock())
    with soon(), pytest.raises(TargetError, match="does not answer"):
        engine.list_containers("r")
    held = docker_engine.OwnContainer(
        id="c1",
        run_id="r",
        run_dir="",
        node_index=0,
        incarnation=0,
        state=docker_engine.NodeState.RUNNING,
    )
    with soon(), pytest.raises(TargetError, match="does not answer"):
        engine.end(held, 0)
    with soon(), pytest.raises(TargetError, match="does not answer"):
        engine.sweep([held])
    with soon(), pytest.raises(TargetError, match="does not answer"):
        engine.sweep_networks("r")


# -- a host ------------------------------------------------------------------------------------


def open_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Ssh:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    put_first(monkeypatch, tmp_path / "bin", "ssh", CLIENT.format(before=before))
    return Ssh(Inventory(hosts=()))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(name="gpu1", state_dir=str(tmp_path / "gpu1"), lease_dir=str(tmp_path / "leases"))


@pytest.mark.parametrize("shared", [255, 0], ids=["first connection", "shared connection"])
def test_an_interrupt_does_not_wait_for_a_host_that_says_nothing(
    tmp_path, monkeypatch, host, shared
):
    monkeypatch.setattr(ssh_session, "OPEN_LIMIT_S", 300.0)
    # One through a connection that is shared is tried once more, but not after an interrupt.
    client = open_ssh(tmp_path, monkeypatch, f"[ $1 = -O ] && exit {shared}; exec sleep 600")
    before = threading.active_count()
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), client.sessions([host]):
        pass
    # The end of the process would wait for this thread.
    wait_until(lambda: threading.active_count() <= before)


def test_an_interrupt_just_before_the_wait_for_hosts_is_heard(tmp_path, monkeypatch):
    over, ended = threading.Event(), []

    def is_waited_for() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return "acquire" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)

    def work(item: None) -> None:
        wait_until(is_waited_for)
        # As Python's main thread sees such a signal: noted, and no wait is ended by it.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.append(over.wait(WITHIN_S))

    with pytest.raises(KeyboardInterrupt):
        open_ssh(tmp_path, monkeypatch).each(work, [None])
    assert not ended
    over.set()


@pytest.fixture
def frozen_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> Iterator[Session]:
    """A conversation with a host's program that a signal has stopped."""
    with open_ssh(tmp_path, monkeypatch).open(host) as session:
        freeze(session._talk._popen.pid)
        yield session


@pytest.mark.parametrize("way", ["question", "bytes", "copy"])
def test_a_host_that_stands_still_is_not_waited_for(
    frozen_session, host, tmp_path, monkeypatch, way
):
    monkeypatch.setattr(host_line, "COPY_SILENCE_S", 0.5)
    own = HostsSettings(hosts=(facts_of(host),), ssh_config=None, containers=ContainerSettings())
    plan: Any = Namespace(own=own, run_id="r", run_dir=str(tmp_path))
    code = {"state_dir": host.state_dir, "hash": "h", "archive": bytes(1 << 20)}
    talk: dict[str, Callable[[], object]] = {
        "question": lambda: frozen_session.call_within(0.5, read_clock),
        "bytes": lambda: frozen_session.ask(0.5, store_code, **code),
        "copy": lambda: host_line.copy_once(frozen_session, plan, 0),
    }
    with soon(), pytest.raises(TargetError, match="gpu1"):
        talk[way]()


def facts_of(host: Host) -> HostFacts:
    return HostFacts(
        host=host,
        address="127.0.0.1",
        interface="lo",
        cpu_count=1,
        python=sys.executable,
        torch_version="2.13.0",
        state_dir=host.state_dir,
    )


def test_nodes_of_an_engine_that_stands_still_are_not_told_as_ended(tmp_path, monkeypatch):
    put_first(monkeypatch, tmp_path / "docker", "docker", HANGS)
    monkeypatch.setattr(requests, "ENGINE_LIMIT_S", 0.5)
    with soon(), pytest.raises(messages.RequestError, match="does not answer"):
        requests.end_nodes("no-such-run", None, 0.0, in_containers=True)


def test_a_worker_that_writes_faster_than_it_is_shown_is_read_a_part_at_a_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tails, "CHUNK_BYTES", 1 << 16)
    run = RunFolder(tmp_path)
    console = run.console(0, 0)
    console.parent.mkdir(parents=True)
    console.write_bytes(b"x" * 99 + b"\n")
    ends = threading.Event()

    def write_on() -> None:
        with console.open("ab", buffering=0) as file:
            while not ends.is_set() and file.tell() < 1 << 30:
                file.write((b"x" * 99 + b"\n") * 10000)

    writer = threading.Thread(target=write_on)
    followed = tails.RunTails(run)
    writer.start()
    try:
        wait_until(lambda: console.stat().st_size > 1 << 20)
        with soon():
            taken = sum(len(output.block.data) for output in followed.poll())
        assert 0 < taken <= tails.CHUNKS_A_TURN << 16
        with soon():
            assert sum(len(output.block.data) for output in followed.close()) > 100_000
    finally:
        ends.set()
        writer.join()


def test_a_clock_that_was_set_back_gives_a_worker_no_longer_grace(tmp_path):
    now = time.time()
    place = guard._Place(
        folder=tmp_path,
        node_dir=tmp_path,
        heartbeat=tmp_path / "beat",
        asked_file=tmp_path / "asked",
        agent_pid=1,
        attempt=0,
        exit_grace_s=2.0,
        rank=0,
        local_rank=0,
    )
    request = {"reason": "preempted", "at": now + 7200, "deadline": now + 7230}
    (tmp_path / protocol.STOP_REQUEST_FILE).write_text(json.dumps(request))
    assert guard._grace_s(place) <= 30
    request = {"reason": "preempted", "at": now - 1, "deadline": now + 29}
    (tmp_path / protocol.STOP_REQUEST_FILE).write_text(json.dumps(request))
    assert 25 < guard._grace_s(place) <= 29
