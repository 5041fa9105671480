"""What a host does when it is asked: a run's end and what is kept of it, a node's grace."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from launcher.code.archive import common_ends, hash_of, pack
from launcher.code.files import list_files
from launcher.contract import protocol
from launcher.contract.process_stat import read_record
from launcher.targets.hosts.connection import HostCopy
from launcher.targets.hosts.program import code_store, leases, processes, requests, watch
from launcher.targets.hosts.program.messages import (
    KeeperSpec,
    Lease,
    NodeSeen,
    RunOnHost,
    read_frame,
)
from launcher.targets.hosts.program.node_state import mark_followed, read_state
from tests.disks import mounted
from tests.waiting import wait_until

ROOT = Path(__file__).parents[4]
RUN = f"kept-{os.getpid()}"
"""Of this file and process alone: a run of this name elsewhere would be ended with it."""
LEASE = Lease(run_id=RUN, node_index=0, owner="me", gpus=["0"], slots=0)
IGNORES_THE_SIGNAL = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run whose code is unpacked and has been imported from."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print(1)")
    run_dir = tmp_path / "runs/r"
    run_dir.mkdir(parents=True)
    archive = io.BytesIO(pack(source, list_files(source, tmp_path / "runs")))
    with tarfile.open(fileobj=archive) as files:
        files.extractall(run_dir / "code")
    cache = run_dir / "code/__pycache__/train.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"0")
    return run_dir


def remove(run_dir: Path, brought_bytes: int = 0) -> int:
    return requests.remove_run(
        run_dir=str(run_dir),
        checkpoint_dir="",
        outputs_dir=str(run_dir.parents[1] / "outputs/r"),
        brought_bytes=brought_bytes,
    )


def bring(run_dir: Path, here: Path, limit_bytes: int) -> None:
    """What a launcher copies at the end of a run."""
    sent = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch.sys, "stdout", Namespace(buffer=sent))
        watch.send_run(run_dir=str(run_dir), node=0, have={}, beside_code_bytes=limit_bytes)
    sent.seek(0)
    copy = HostCopy(here)
    while (frame := read_frame(sent)) is not None:
        copy.write(*frame)


def test_a_run_goes_without_a_trace_but_for_what_its_training_wrote_beside_its_code(
    run_dir, tmp_path
):
    # As Lightning does without being asked to.
    log = run_dir / "code/lightning_logs/version_0/metrics.csv"
    log.parent.mkdir(parents=True)
    log.write_text("loss\n0.5\n")
    (run_dir / "code/train.py").write_text("print(2)")
    (run_dir / "code/empty").touch()
    # Without a limit nothing is brought or lost.
    bring(run_dir, tmp_path / "here", 0)
    assert not (tmp_path / "here").exists()
    assert remove(run_dir) == 3
    folder = run_dir.parents[1] / "outputs/r"
    kept = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert kept == ["empty", "lightning_logs/version_0/metrics.csv", "train.py"]
    assert not run_dir.exists()
    assert remove(run_dir) == 0


def test_small_files_that_a_training_wrote_beside_its_code_are_brought(run_dir, tmp_path):
    here = tmp_path / "here"
    texts = {"out.txt": "", "checkpoints/ä b.json": "12345", ".hidden": "123456", "big": "1" * 12}
    for name, text in texts.items():
        path = run_dir / "code" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    bring(run_dir, here, 12)
    brought = {p.relative_to(here / "code").as_posix() for p in here.rglob("*") if p.is_file()}
    assert brought == {"out.txt", "checkpoints/ä b.json", ".hidden"}
    assert (here / "code/checkpoints/ä b.json").read_text() == "12345"
    assert remove(run_dir, 12) == 1
    left = [path for path in (run_dir.parents[1] / "outputs").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["big"]


def test_code_that_a_run_is_about_to_use_is_not_the_next_to_be_removed(tmp_path):
    def is_there(name: str) -> bool:
        return code_store.has_code(state_dir=str(tmp_path), hash=name)

    def store(name: str) -> None:
        code_store.store_code(state_dir=str(tmp_path), hash=name, archive=b"")

    for number in range(code_store.KEPT_ARCHIVES):
        store(f"h{number}")
        os.utime(tmp_path / f"code/h{number}.tar.gz", (number, number))
    assert is_there("h0")
    store("new")
    assert is_there("h0")
    assert not is_there("h1")


def test_code_that_changed_in_one_file_is_kept_from_that_and_from_the_archive_before(tmp_path):
    source, state = tmp_path / "source", str(tmp_path)
    source.mkdir()
    (source / "weights.bin").write_bytes(os.urandom(1 << 20))
    for number in range(100):
        (source / f"m{number}.py").write_text("pass")
    packed = [pack(source, list_files(source, tmp_path / "runs"))]
    (source / "m50.py").write_text("print('edited')")
    packed.append(pack(source, list_files(source, tmp_path / "runs")))
    start, end = common_ends(*packed)
    changed = packed[1][start : len(packed[1]) - end]
    assert len(changed) < 5000

    hashes = [hash_of(data) for data in packed]

    def store_change() -> bool:
        return code_store.store_code(
            state_dir=state,
            hash=hashes[1],
            archive=changed,
            base=hashes[0],
            start=start,
            end=end,
        )

    assert not store_change(), "the archive before is not there"
    assert code_store.store_code(state_dir=state, hash=hashes[0], archive=packed[0])
    assert store_change()
    before, kept = (tmp_path / f"code/{hash}.tar.gz" for hash in hashes)
    assert kept.read_bytes() == packed[1]
    before.write_bytes(packed[0][:-1])
    assert not store_change(), "the archive before is cut"


def test_hosts_with_one_home_make_a_run_ready_at_the_same_time(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(50):
        (source / f"m{number}.py").write_text("pass")
    archive = pack(source, list_files(source, tmp_path / "runs"))
    start = threading.Barrier(8)

    # Threads have one process id, as processes of two hosts may.
    def make_ready(number: int) -> None:
        start.wait(20)
        code_store.store_code(state_dir=str(tmp_path), hash="h", archive=archive)
        run_dir = str(tmp_path / "runs/r")
        code_store.prepare_run(
            run_dir=run_dir,
            state_dir=str(tmp_path),
            folders=[],
            files=[[f"{run_dir}/plan.json", "{}"]],
            agent=b"the agent",
            code="h",
            needed=[f"{run_dir}/code/m49.py"],
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make_ready, range(8))) == [None] * 8
    names = {path.name for path in (tmp_path / "runs/r").iterdir()}
    assert names == {"plan.json", "agent.pyz", "code"}


Keeper = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keeper]:
    """Starts a keeper of a node that runs a shell script, with a lease of GPU 0."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "nodes/0/0").mkdir(parents=True)

    def start(
        script: str, *, detached: bool = True, container: str = "", argv: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        spec = KeeperSpec(
            run_id=RUN,
            node_index=0,
            node_dir=str(tmp_path / "nodes/0/0"),
            argv=argv or ["sh", "-c", script],
            cwd="/",
            unset=[],
            env={},
            secrets={},
            container=container,
            detached=detached,
            stop_grace_s=60,
        )
        held = leases.acquire(str(tmp_path / "leases"), LEASE, None)
        command = [sys.executable, "-m", "launcher.targets.hosts.program", "keep", *map(str, held)]
        own = {protocol.RUN_ID: RUN, protocol.NODE_INDEX: "0", processes.KEEPER: "1"}
        keeper = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            pass_fds=held,
        )
        started.append(keeper)
        for file in held:
            os.close(file)
        stdin = started[-1].stdin
        stdin.write(spec.to_json().encode())
        stdin.close()
        return started[-1]

    yield start
    living = [psutil.Process(keeper.pid) for keeper in started if keeper.poll() is None]
    nodes = [node for keeper in living for node in keeper.children()]
    for process in (*started, *nodes):
        process.kill()
        process.wait()


def test_a_host_names_the_full_disk_of_a_node_that_could_not_report(tmp_path, keep):
    with mounted(tmp_path) as disk:
        (tmp_path / "nodes/0/0").mkdir(parents=True)
        # As of an agent that finds no room for its outcome.
        keeper = keep(f"head -c 64m /dev/zero >{tmp_path}/big; exit 198")
        keeper.wait(60)
        seen = read_record(tmp_path / "nodes/0/0")
    assert seen["exit_code"] == 198
    told = f"No space left on device: the disk at {disk.path} is full: "
    assert seen["detail"].startswith(told)
    assert "largest in the run folder: big (" in seen["detail"]


def test_what_a_node_holds_is_its_own_until_its_grace_is_over(tmp_path, keep):
    keeper = keep(IGNORES_THE_SIGNAL)
    console = tmp_path / "nodes/0/0/console.log"
    wait_until(lambda: console.exists() and b"ready" in console.read_bytes())
    (tmp_path / "nodes/0/0" / processes.GRACE_FILE).write_text("1.0")
    asked_at = time.monotonic()
    os.kill(keeper.pid, signal.SIGTERM)
    time.sleep(0.5)  # nothing is to happen
    assert keeper.poll() is None
    assert [lease.run_id for lease in leases.read_leases(str(tmp_path / "leases"))] == [RUN]
    assert keeper.wait(20) == 0
    assert time.monotonic() - asked_at >= 1.0
    assert read_state(tmp_path / "nodes/0/0") == NodeSeen(state="exited", exit_code=137)
    assert leases.read_leases(str(tmp_path / "leases")) == []


def test_a_node_that_saves_until_its_grace_is_over_tidies_up_by_itself(tmp_path, keep):
    keeper = keep("trap 'sleep 3.2; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    console = tmp_path / "nodes/0/0/console.log"
    wait_until(lambda: console.exists() and b"ready" in console.read_bytes())
    (tmp_path / "nodes/0/0" / processes.GRACE_FILE).write_text("3.0")
    os.kill(keeper.pid, signal.SIGTERM)
    assert keeper.wait(20) == 0
    assert read_state(tmp_path / "nodes/0/0") == NodeSeen(state="exited", exit_code=7)


DOCKER = """#!/bin/sh
echo $* >>{log}
[ $1 = rm ] || echo 'true no room'
"""


def test_a_container_is_removed_and_its_engine_says_why_it_ended(tmp_path, keep, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER.format(log=tmp_path / "log"))
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert keep("exit 3", container="c-0").wait(20) == 0
    seen = NodeSeen(state="exited", exit_code=3, out_of_memory=True, detail="no room")
    assert read_state(tmp_path / "nodes/0/0") == seen
    assert (tmp_path / "log").read_text().splitlines() == [
        "inspect --format {{.State.OOMKilled}} {{.State.Error}} c-0",
        "rm --force --volumes c-0",
    ]


def test_a_program_that_is_not_there_is_told(tmp_path, keep):
    keep("", argv=["/nowhere/python"]).wait(20)
    detail = "cannot start /nowhere/python: No such file or directory"
    seen = NodeSeen(state="exited", exit_code=126, detail=detail)
    assert read_state(tmp_path / "nodes/0/0") == seen


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_container_whose_agent_has_not_begun_does_not_hear_and_ends_at_once(
    tmp_path, keep, has_begun
):
    (tmp_path / "nodes/0/0" / protocol.NODE_TASK_FILE).touch()
    if has_begun:
        (tmp_path / "ledger").mkdir()
        (tmp_path / "ledger/agent-0-0.jsonl").touch()
    keeper = keep(IGNORES_THE_SIGNAL, container=f"no-such-{os.getpid()}")
    console = tmp_path / "nodes/0/0/console.log"
    wait_until(lambda: console.exists() and b"ready" in console.read_bytes())
    os.kill(keeper.pid, signal.SIGTERM)
    if not has_begun:
        assert keeper.wait(20) == 0
        return
    time.sleep(0.5)  # nothing is to happen
    assert keeper.poll() is None


def test_a_node_whose_launcher_is_not_heard_saves_ends_and_gives_back_what_it_held(tmp_path, keep):
    mark_followed(tmp_path, 0)
    saves = "trap 'sleep 6; echo saved; exit' TERM; echo ready; while :; do sleep 0.1; done"
    keeper = keep(saves, detached=False)
    console = tmp_path / "nodes/0/0/console.log"
    wait_until(lambda: console.exists() and b"ready" in console.read_bytes())
    assert keeper.poll() is None
    os.utime(tmp_path / "nodes/0" / protocol.FOLLOWED_FILE, (1e9, 1e9))
    assert keeper.wait(30) == 0
    assert b"saved" in console.read_bytes(), "it has the job's own grace"
    assert read_state(tmp_path / "nodes/0/0").detail == protocol.LAUNCHER_GONE
    assert leases.read_leases(str(tmp_path / "leases")) == []


def test_what_outlives_its_keeper_or_hangs_is_killed_and_of_other_nodes_nothing(monkeypatch):
    def start(node: int, **more: str) -> subprocess.Popen[bytes]:
        own = {protocol.RUN_ID: RUN, protocol.NODE_INDEX: str(node), **more}
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, **own})
        threading.Thread(target=child.wait, daemon=True).start()
        wait_until(lambda: child.pid in processes.find(RUN, node, keepers=None))
        return child

    monkeypatch.setattr(requests, "KEEPER_LIMIT_S", 0.1)
    alone, other, keeper = start(0), start(1), start(2, **{processes.KEEPER: "1"})
    keeper.send_signal(signal.SIGSTOP)
    assert processes.find(RUN) == (alone.pid, other.pid)
    assert processes.find(RUN, keepers=True) == (keeper.pid,)
    # The grace is the keeper's: nobody else needs it.
    left_of = {0: (60.0, (other.pid, keeper.pid)), 2: (0.5, (other.pid,)), None: (60.0, ())}
    for node, (grace_s, left) in left_of.items():
        began_at = time.monotonic()
        requests.end_nodes(RUN, node, grace_s, in_containers=False)
        assert (time.monotonic() - began_at > grace_s) == (node == 2)
        assert processes.find(RUN, keepers=None) == left
    monkeypatch.setattr(requests, "KILL_LIMIT_S", 0.1)
    hung = start(0)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "send", lambda pids, signum: None)
        with pytest.raises(requests.RequestError) as error:
            requests.end_nodes(RUN, 0, 0.0, in_containers=False)
    assert str(error.value) == f"processes ({hung.pid},) of {RUN} cannot be ended"
    requests.end_nodes(RUN, 0, 0.0, in_containers=False)


def test_what_a_run_left_is_found_with_its_size_and_removed_unless_it_lives(tmp_path):
    for path in ("runs/cut/log", "checkpoints/cut/step", "checkpoints/ended/step"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(10))
    followed = tmp_path / "runs/followed"
    (followed / "nodes/0").mkdir(parents=True)
    mark_followed(followed, 0)
    state = str(tmp_path)
    told = requests.find_left(state_dir=state)
    found = [(one.run_id, one.size_bytes, one.is_cut) for one in told]
    assert found == [("cut", 20, True), ("ended", 10, False)]
    for run_id in ("cut", "followed"):
        requests.find_left(state_dir=state, remove=run_id)
    assert [one.run_id for one in requests.find_left(state_dir=state)] == ["ended"]
    assert followed.exists()
    assert not (tmp_path / "checkpoints/cut").exists()


def test_the_runs_of_a_host_are_told_by_what_their_nodes_wrote(tmp_path):
    for run_id in ("digits-1", "digits-2", "moons-1"):
        for node in (0, 12):
            for incarnation in (0, 1):
                folder = tmp_path / "runs" / run_id / f"nodes/{node}/{incarnation}"
                folder.mkdir(parents=True)
                (folder / "console.log").touch()
                os.utime(folder / "console.log", (100 + node, 100 + node))
        (tmp_path / "runs" / run_id / "plan.json").write_text(run_id)
    (tmp_path / "runs/digits-3").mkdir()
    (tmp_path / "runs/digits-3/plan.json").write_text("new")
    mark_followed(tmp_path / "runs/digits-2", 0)
    before, told = time.time(), requests.list_runs(state_dir=str(tmp_path), run_id="digits")
    known = {"nodes": [0, 12], "began_at": 100.0}
    assert told[:2] == [
        RunOnHost(run_id="digits-1", plan="digits-1", lives=False, **known),
        RunOnHost(run_id="digits-2", plan="digits-2", lives=True, **known),
    ]
    assert told[2].having(began_at=0.0) == (
        RunOnHost(run_id="digits-3", plan="new", nodes=[], lives=False, began_at=0.0)
    )
    assert before <= told[2].began_at <= time.time()
    newest = str(tmp_path / "runs/digits-1/nodes/12")
    (tmp_path / "runs/digits-1/nodes/12/1/ready").write_text("yes")
    assert requests.read_newest(folder=newest, name="ready") == "yes"
    assert requests.read_newest(folder=newest, name="other") == ""
    assert requests.read_newest(folder=str(tmp_path), name="ready") == ""


def test_a_request_is_for_a_launcher_that_is_heard_and_one_that_is_not_taken_is_told(
    tmp_path, monkeypatch
):
    def ask() -> bool:
        return requests.ask_launcher(run_dir=str(tmp_path), name="scale", text="{}")

    (tmp_path / "nodes/0").mkdir(parents=True)
    assert (ask(), (tmp_path / "scale").exists()) == (False, False)
    mark_followed(tmp_path, 0)
    monkeypatch.setattr(requests, "ANSWER_LIMIT_S", 0.2)
    assert ask() is False
    assert (tmp_path / "scale").read_text() == "{}"
