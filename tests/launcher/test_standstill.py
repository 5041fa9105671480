"""What is waited for stands still: an engine, a cluster, a host, a keeper, a launcher, a folder."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.agent.worker import guard
from launcher.api import resizing
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import TargetError
from launcher.follow import tails
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets import process_table
from launcher.targets.docker import engine as docker_engine
from launcher.targets.docker.engine import Engine
from launcher.targets.hosts import connection as host_line
from launcher.targets.hosts import images, ssh
from launcher.targets.hosts.connection import HostLine, send_beats
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.program import messages, processes, requests
from launcher.targets.hosts.program.node_state import read_state
from launcher.targets.hosts.settings import Host, HostFacts
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.kubernetes import api
from tests.launcher.runner import WAITING, Runner
from tests.waiting import StoppedClock, wait_until

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
def test_an_engine_that_stands_still_after_its_first_word_is_an_error() -> None:
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


# -- a cluster ---------------------------------------------------------------------------------


def test_a_cluster_that_accepts_and_never_answers_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}}
            ],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(api, "REQUEST_LIMIT_S", 1.0)
        monkeypatch.setattr(api, "STREAM_SILENCE_S", 1.0)
        cluster = api.Cluster()
        cluster.namespace  # noqa: B018 - the client and the configuration are read before
        with soon(), pytest.raises(TargetError, match="does not answer"):
            cluster.read_version()
        with soon(), pytest.raises(TargetError, match="does not answer"):
            next(cluster.watch_pods("a=b", "1"))
        with soon(), pytest.raises(TargetError, match="does not answer"):
            next(cluster.read_log("pod", {"follow": "true"}))


# -- a host ------------------------------------------------------------------------------------


def open_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Ssh:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    put_first(monkeypatch, tmp_path / "bin", "ssh", CLIENT.format(before=before))
    return Ssh(Inventory(hosts=()))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(name="gpu1", state_dir=str(tmp_path / "gpu1"), lease_dir=str(tmp_path / "leases"))


def test_a_host_that_never_says_its_first_word_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setattr(ssh, "OPEN_LIMIT_S", 0.5)
    client = open_ssh(tmp_path, monkeypatch, "[ $2 = -O ] && exit 255; exec sleep 600")
    with soon(), pytest.raises(TargetError, match="gpu1"):
        client.open(host)


@pytest.mark.parametrize("shared", [255, 0], ids=["first connection", "shared connection"])
def test_an_interrupt_does_not_wait_for_a_host_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host, shared: int
) -> None:
    monkeypatch.setattr(ssh, "OPEN_LIMIT_S", 300.0)
    # One through a connection that is shared is tried once more, but not after an interrupt.
    client = open_ssh(tmp_path, monkeypatch, f"[ $1 = -O ] && exit {shared}; exec sleep 600")
    before = threading.active_count()
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), client.sessions([host]):
        pass
    # The end of the process would wait for this thread.
    wait_until(lambda: threading.active_count() <= before)


def test_an_interrupt_just_before_the_wait_for_hosts_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    frozen_session: Session,
    host: Host,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setattr(host_line, "COPY_SILENCE_S", 0.5)
    talk: dict[str, Callable[[], object]] = {
        "question": lambda: frozen_session.call(messages.ReadClock(), limit_s=0.5),
        "bytes": lambda: frozen_session.send(messages.ImageChunk(), bytes(1 << 20), limit_s=0.5),
        "copy": lambda: host_line.copy_once(frozen_session, facts_of(host), 0, "r", tmp_path),
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


def test_a_host_that_takes_long_to_be_reached_is_heard_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setattr(host_line, "SILENCE_LIMIT_S", 2.0)
    monkeypatch.setattr(host_line, "BEAT_S", 0.02)
    client = open_ssh(tmp_path, monkeypatch, "[ $2 = -O ] && exit 255; sleep 2.5")
    node = tmp_path / "gpu1/runs/r/nodes/0/0"
    node.mkdir(parents=True)
    line = HostLine(client, "r", tmp_path / "here", facts_of(host), 0)
    line.open()
    beats = send_beats(lambda: [line])
    try:
        assert line.has_told.wait(WITHIN_S)
    finally:
        beats.set()
        line.close()


def test_a_host_that_falls_silent_is_dropped_and_reached_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setattr(host_line, "SILENCE_LIMIT_S", 2.0)
    client = open_ssh(tmp_path, monkeypatch, "[ $2 = -O ] && exit 255; :")
    (tmp_path / "gpu1/runs/r/nodes/0/0").mkdir(parents=True)
    line = HostLine(client, "r", tmp_path / "here", facts_of(host), 0)
    line.open()
    beats = send_beats(lambda: [line])
    try:
        assert line.has_told.wait(WITHIN_S)
        first = line._session
        assert first is not None
        freeze(first._talk._popen.pid)
        wait_until(lambda: line.silent_s() > 2.0)
        wait_until(lambda: line.silent_s() < 1.5)
        assert line._session is not first
    finally:
        beats.set()
        line.close()


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
def test_an_image_that_gets_stuck_on_its_way_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host, save: str, load: str
) -> None:
    put_first(monkeypatch, tmp_path / "docker", "docker", DOCKER.format(save=save, load=load))
    monkeypatch.setattr(images, "SILENCE_LIMIT_S", 1.0)
    monkeypatch.setattr(images, "PROVIDE_LIMIT_S", 1.0)
    image = images.Image(name="i", id="own")
    before = living()
    with (
        open_ssh(tmp_path, monkeypatch).open(host) as session,
        soon(),
        pytest.raises(TargetError, match="gpu1"),
    ):
        images.provide_image(image, session)
    assert living() <= before


def test_nodes_of_an_engine_that_stands_still_are_not_told_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_first(monkeypatch, tmp_path / "docker", "docker", HANGS)
    monkeypatch.setattr(requests, "ENGINE_LIMIT_S", 0.5)
    with soon(), pytest.raises(messages.RequestError, match="does not answer"):
        requests.end_nodes("no-such-run", None, 0.0, in_containers=True)


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
        assert keeper.stdin is not None
        keeper.stdin.write(spec.to_json().encode())
        keeper.stdin.close()
        wait_until(lambda: read_state(tmp_path / "node").state != "missing")
        return keeper

    yield start
    for keeper in started:
        keeper.kill()
        keeper.wait()


def test_a_keeper_that_is_stopped_does_not_hold_up_a_stop(
    tmp_path: Path, kept: Callable[..., subprocess.Popen[bytes]]
) -> None:
    keeper = kept("sleep", "600")
    os.kill(keeper.pid, signal.SIGSTOP)
    reaper = threading.Thread(target=keeper.wait, daemon=True)
    reaper.start()
    with soon():
        requests.end_nodes("standing", None, 0.5, in_containers=False)
    assert processes.find("standing") == ()


def test_a_keeper_whose_starter_hangs_does_not_wait_for_ever() -> None:
    code = (
        "import launcher.targets.hosts.program.__main__ as m;"
        " m.SPEC_LIMIT_S = 1; m.main(['host', 'keep'])"
    )
    keeper = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE)
    assert keeper.wait(timeout=20) == -signal.SIGALRM


# -- a launcher ----------------------------------------------------------------------------------


def is_up(launcher: Runner) -> bool:
    return bool(list((launcher.folder / "runs").glob("*-*/up-0")))


@pytest.mark.slow
def test_a_run_whose_launcher_is_frozen_is_stopped_at_once_and_the_launcher_named(
    launcher: Runner,
) -> None:
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
        assert launcher.outcome["reason"] == "stop-requested"
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 143
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_detached_run_whose_folder_is_removed_ends(launcher: Runner) -> None:
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


def test_a_launcher_that_takes_up_no_request_is_told_after_the_limit(
    tmp_path: Path, make_plan: Callable[..., LaunchPlan]
) -> None:
    plan = replace(make_plan(nnodes="1:2"), run_dir=str(tmp_path / "run"))
    run = RunFolder(tmp_path / "run")
    run.create(plan, "", 0.0)
    run.write_launcher()
    clock = StoppedClock(5e6)
    with soon(), pytest.raises(TargetError, match="has not answered"):
        resizing.scale_run(run, 1, clock)
    assert clock.now > resizing.ANSWER_LIMIT_S


def test_a_worker_that_writes_faster_than_it_is_shown_is_read_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_clock_that_was_set_back_gives_a_worker_no_longer_grace(tmp_path: Path) -> None:
    now = time.time()
    place = guard._Place(
        folder=tmp_path,
        node_dir=tmp_path,
        heartbeat=tmp_path / "beat",
        asked=tmp_path / "asked",
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
