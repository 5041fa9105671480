"""A full disk under a node: told as what it is, and never the end of who tells it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.attempts import Attempts
from launcher.agent.worker.heartbeat import HeartbeatWriter
from tests.disks import Disk, mounted
from tests.launcher.agent.conftest import end
from tests.launcher.agent.place import Place

FILL = """
import os, pathlib, time
def fill(folder=os.environ["RUN_DIR"]):
    with open(os.path.join(folder, "filler"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


@pytest.fixture
def node(disk: Disk, archive: Path) -> Iterator[Place]:
    """A node all of whose files lie on the small disk, but for its console."""
    made = Place(disk.path, archive)
    (made.folder / "console-0.log").symlink_to(made.folder.parent / "console-0.log")
    yield made
    end(made)


@pytest.mark.mount
def test_an_end_that_nothing_tells_of_on_a_full_disk_is_the_disk_s(disk, tmp_path):
    attempts = Attempts(disk.path / "run/nodes/0/0", disk.path / "run", tmp_path)
    (worker,) = attempts.begin({0: 0})
    HeartbeatWriter(worker.heartbeat)
    assert attempts.collect_ends()[0].exception == "it was killed together with its guard process"
    disk.fill()
    (told,) = attempts.collect_ends()
    assert told.cause == "disk-full"
    assert told.exception == "its end could not be written down: No space left on device"


@pytest.mark.mount
def test_a_file_that_cannot_be_replaced_stays_as_it_was(disk):
    path = disk.path / "outcome.json"
    write_atomically(path, "before")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after" * 10_000)
    assert path.read_text() == "before"
    assert disk.leftovers() == []


def test_a_worker_that_was_asked_to_end_and_took_too_long_has_no_fault(tmp_path):
    attempts = Attempts(tmp_path / "run/nodes/0/0", tmp_path / "run", tmp_path)
    attempts.node_dir.mkdir(parents=True)
    (worker,) = attempts.begin({0: 0})
    HeartbeatWriter(worker.heartbeat)
    assert attempts.collect_ends()[0].cause == "killed"
    worker.asked_file.touch()
    assert attempts.collect_ends()[0].cause == "terminated"
    attempts.begin({0: 0})
    assert not worker.heartbeat.exists(), "signals would be passed on to whatever has its pid now"
