"""A full disk under a node: waited for, told as what it is, and never the end of who tells it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.atomic_write import reserve, write_atomically
from launcher.agent.engine.attempts import Attempts
from launcher.agent.heartbeat import HeartbeatWriter
from tests.disks import BYTES, Disk, is_full, mounted
from tests.launcher.agent.conftest import end
from tests.launcher.agent.place import LIMIT_S, Place, free_port, wait_until

pytestmark = pytest.mark.mount

STARTS = ["fresh", pytest.param("fork", marks=pytest.mark.slow)]
FILL = """
import os, pathlib, time
def fill():
    with open(os.path.join(os.environ["RUN_DIR"], "filler"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
"""
FILLING = FILL + "fill()\n"
FILLING_ONCE = FILL + "if os.environ['LAUNCHER_NODE_ATTEMPT'] == '0': fill()\nprint('done')\n"
QUIET = FILL + (
    "try: fill()\n"
    "except OSError: pass\n"
    "pathlib.Path('../full').touch()\n"
    "while not pathlib.Path('../go').exists(): time.sleep(0.05)\n"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


@pytest.fixture
def node(disk: Disk, archive: Path) -> Iterator[Place]:
    """A node all of whose files lie on the small disk."""
    made = Place(disk.path, archive)
    yield made
    end(made)


def show_console(node: Place) -> None:
    """Puts the console on another disk, where it can be read while the small one is full."""
    name = f"console-{node.index}.log"
    (node.folder / name).symlink_to(node.folder.parent / name)


def run(node: Place, script: str, **settings: Any) -> int:
    node.write(script)
    node.plan(**{"disk_free_limit_s": 2.0, **settings})
    return node.run()


@pytest.mark.parametrize("start", STARTS)
def test_a_disk_that_stays_full_ends_the_node_by_its_own_reason(
    node: Place, disk: Disk, start: str
) -> None:
    assert run(node, FILLING, nproc=2, max_restarts=1000, start=start) == 198
    told = node.outcome()
    assert told["reason"] == "disk-full"
    assert told["first"]["cause"] == "disk-full"
    assert "No space left on device" in told["first"]["message"]
    size = f"{BYTES >> 20}.0 MiB at {disk.path}"
    for part in (size, "0 bytes free", "most in filler (8.0 MiB);", "waited 2 s for room"):
        assert part in told["detail"]
    assert disk.leftovers() == []


@pytest.mark.parametrize("start", STARTS)
def test_a_disk_that_has_room_again_lets_the_run_go_on(node: Place, disk: Disk, start: str) -> None:
    show_console(node)
    node.write(FILLING_ONCE)
    node.plan(nproc=2, start=start, disk_free_limit_s=LIMIT_S)
    process = node.start()
    wait_until(lambda: "waiting for room" in node.console())
    assert is_full(disk.path)
    (node.run_dir / "filler").unlink()
    assert process.wait(LIMIT_S) == 0
    assert node.stdout(attempt=1) == "done\n"
    assert node.outcome()["restarts"] == {"disk-full": 1}
    assert node.console().count("waiting for room") == 1
    assert [e["waited_s"] > 0 for e in node.events() if e["event"] == "disk-wait"] == [True]
    assert disk.leftovers() == []


@pytest.mark.slow
def test_a_disk_that_is_full_before_the_start_is_waited_for(node: Place, disk: Disk) -> None:
    node.write("print('done')")
    node.plan(disk_free_limit_s=LIMIT_S)
    show_console(node)
    disk.fill()
    process = node.start()
    wait_until(lambda: "waiting for room" in node.console())
    disk.free()
    assert process.wait(LIMIT_S) == 0
    assert node.stdout() == "done\n"


def test_a_disk_that_is_full_before_the_start_and_stays_so_ends_the_node(
    node: Place, disk: Disk
) -> None:
    node.write("print('never')")
    node.plan(disk_free_limit_s=1.0)
    disk.fill()
    assert node.run() == 198
    assert disk.leftovers() == []
    assert not node.rank().exists()


def test_a_signal_ends_the_wait_for_room(node: Place, disk: Disk) -> None:
    node.write("print('never')")
    node.plan(disk_free_limit_s=LIMIT_S)
    show_console(node)
    disk.fill()
    process = node.start()
    wait_until(lambda: "waiting for room" in node.console())
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 143


@pytest.mark.parametrize("start", STARTS)
def test_workers_that_write_nothing_never_notice_and_their_end_is_told(
    node: Place, disk: Disk, start: str
) -> None:
    disk.path.joinpath("script.py").write_text(QUIET)
    node.plan(nproc=2, start=start, disk_free_limit_s=1.0)
    process = node.start()
    wait_until((disk.path.parent / "full").exists)
    assert is_full(disk.path)
    (disk.path.parent / "go").touch()
    assert process.wait(LIMIT_S) == 0
    assert node.outcome()["reason"] == "completed"
    assert json.loads((node.rank(1) / "exit.json").read_text())["exit_code"] == 0
    assert disk.leftovers() == []


SPEAKING = (
    FILL
    + """
node_dir = pathlib.Path(os.environ["LAUNCHER_NODE_DIR"])
(node_dir / "stop-ready").touch()
try: fill()
except OSError: pass
pathlib.Path("../full").touch()
while not (node_dir / "stop-request").exists(): time.sleep(0.05)
pathlib.Path("../asked").write_text((node_dir / "stop-request").read_text())
(node_dir / "stop-ack").touch()
time.sleep(600)
"""
)


@pytest.mark.slow
def test_a_training_is_asked_to_commit_on_a_full_disk_too(node: Place, disk: Disk) -> None:
    disk.path.joinpath("script.py").write_text(SPEAKING)
    node.plan(stop_grace_s=4.0)
    process = node.start()
    wait_until((disk.path.parent / "full").exists)
    process.send_signal(signal.SIGTERM)
    wait_until((disk.path.parent / "asked").exists, limit_s=10)
    assert json.loads((disk.path.parent / "asked").read_text())["reason"] == "preempted"
    assert process.wait(LIMIT_S) == 143
    assert node.outcome()["reason"] == "preempted"


MANY_FILES = """
import itertools, os
for number in itertools.count():
    open(os.path.join(os.environ["RUN_DIR"], f"one-of-many-{number}"), "w").close()
"""


@pytest.mark.slow
def test_a_disk_without_inodes_is_full_though_it_has_bytes(tmp_path: Path, archive: Path) -> None:
    with mounted(tmp_path / "small", f"size={BYTES},nr_inodes=300") as disk:
        node = Place(disk.path, archive)
        assert run(node, MANY_FILES, max_restarts=1000, disk_free_limit_s=1.0) == 198
        told = node.outcome()
        assert told["reason"] == told["first"]["cause"] == "disk-full"
        assert "all of its 300 inodes are in use" in told["detail"]
        assert "most in . (2" in told["detail"]


OTHER = """
import os, pathlib
with open("../other/big", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


@pytest.mark.slow
def test_another_full_disk_is_the_worker_s_own_failure_and_is_named(
    node: Place, disk: Disk
) -> None:
    with mounted(disk.path.parent / "other") as other:
        script = OTHER + ""
        env = (("CHECKPOINT_DIR", str(other.path)),)
        assert run(node, script, max_restarts=0, env=env) == 1
        told = node.outcome()
        assert (told["reason"], told["first"]["cause"]) == ("training-failed", "exit")
        assert f"full: the disk at {other.path}" in told["detail"]


@pytest.mark.slow
def test_a_used_up_quota_is_a_full_disk(node: Place) -> None:
    quota = "import errno, os\nraise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), 'x')\n"
    assert run(node, quota, max_restarts=1000) == 198
    told = node.outcome()
    assert told["reason"] == told["first"]["cause"] == "disk-full"
    assert "a quota may be used up" in told["detail"]
    assert told["restarts"] == {"disk-full": 2}, "three equal failures end it"


WAITING = """
import os, pathlib, time
print("world", os.environ["WORLD_SIZE"])
while not pathlib.Path("../go").exists(): time.sleep(0.05)
"""


def test_one_of_two_nodes_has_a_full_disk(disk: Disk, tmp_path: Path, archive: Path) -> None:
    port = free_port()
    nodes = [Place(tmp_path / "roomy", archive, 0), Place(disk.path, archive, 1)]
    for node in nodes:
        node.folder.mkdir(exist_ok=True)
        node.write(WAITING if node.index == 0 else FILLING)
        node.plan(
            nproc=2,
            max_nodes=2,
            port=port,
            max_restarts=1000,
            disk_free_limit_s=1.0,
            conf=(("fence_dir", str(tmp_path / "fence")),),
        )
        node.start()
    assert nodes[1].process is not None
    try:
        assert nodes[1].process.wait(LIMIT_S) == 198, nodes[1].console()
        assert nodes[1].outcome()["reason"] == "disk-full"
        # The other has its own disk, and one node is enough.
        wait_until(lambda: nodes[0].stdout(attempt=1) or nodes[0].stdout(1, attempt=1), 60)
        (tmp_path / "go").touch()
        assert nodes[0].process is not None
        assert nodes[0].process.wait(LIMIT_S) == 0, nodes[0].console()
        assert nodes[0].outcome()["reason"] == "completed"
    finally:
        for node in nodes:
            end(node)


def test_an_end_that_nothing_tells_of_on_a_full_disk_is_the_disk_s(
    disk: Disk, tmp_path: Path
) -> None:
    attempts = Attempts(disk.path / "run/nodes/0/0", disk.path / "run", tmp_path)
    attempts.begin({0: 0})
    (worker,) = attempts.make()
    HeartbeatWriter(worker.heartbeat)
    assert attempts.end()[0].message == "with the process that guards it"
    disk.fill()
    (told,) = attempts.end()
    assert told.cause == "disk-full"
    assert told.message == "its end could not be written down: No space left on device"


def test_a_file_that_cannot_be_replaced_stays_as_it_was(disk: Disk) -> None:
    path = disk.path / "outcome.json"
    write_atomically(path, "before")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after" * 10_000, "short")
    assert path.read_text() == "before"
    assert disk.leftovers() == []


def test_a_reserve_takes_the_first_text_that_fits(disk: Disk) -> None:
    path = disk.path / "outcome.json"
    reserve(path, 100)
    disk.fill()
    write_atomically(path, "long" * 100, "shorter" * 10, "short")
    assert path.read_text() == "shorter" * 10
    assert disk.leftovers() == []


def test_nothing_is_left_of_a_reserve_that_has_no_room(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        reserve(disk.path / "outcome.json", 100)
    assert disk.leftovers() == []


def test_a_group_that_cannot_be_numbered_names_the_disk_of_the_checkpoints(
    tmp_path: Path, disk: Disk, archive: Path
) -> None:
    (tmp_path / "roomy").mkdir()
    node = Place(tmp_path / "roomy", archive)
    node.write("print('never')")
    disk.fill()
    node.plan(
        port=free_port(),
        env=(("CHECKPOINT_DIR", str(disk.path)),),
        conf=(("fence_dir", str(disk.path)),),
    )
    assert node.run() == 198, node.console()
    assert node.outcome()["reason"] == "disk-full"
    assert f"the disk of {disk.path} is full: 8.0 MiB" in node.outcome()["detail"]
    end(node)


def test_a_worker_that_was_asked_to_end_and_took_too_long_has_no_fault(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "run/nodes/0/0", tmp_path / "run", tmp_path)
    attempts.node_dir.mkdir(parents=True)
    attempts.begin({0: 0})
    (worker,) = attempts.make()
    HeartbeatWriter(worker.heartbeat)
    assert attempts.end()[0].cause == "signal"
    worker.asked.touch()
    assert attempts.end()[0].cause == "terminated"
    attempts.begin({0: 0})
    attempts.make()
    assert not worker.heartbeat.exists(), "signals would be passed on to whatever has its pid now"
