import os
import signal
import time
from pathlib import Path

from launcher.agent.node.supervisor import SCRATCH_PREFIX, Scratch


def start_owner(root: Path) -> int:
    """A process that owns a folder and waits; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    Scratch(root)
    time.sleep(60)
    os._exit(0)


def wait_for(root: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(list(root.glob(f"{SCRATCH_PREFIX}*/owner"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_folder_of_an_owner_that_was_killed_is_removed_by_the_next(tmp_path):
    pid = start_owner(tmp_path)
    wait_for(tmp_path, 1)
    (left,) = tmp_path.glob(f"{SCRATCH_PREFIX}*")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert left.exists()
    own = Scratch(tmp_path)
    assert list(tmp_path.glob(f"{SCRATCH_PREFIX}*")) == [own.path]


def test_the_folder_of_a_living_owner_is_left_alone(tmp_path):
    first = Scratch(tmp_path)
    second = Scratch(tmp_path)
    assert all(own.path.exists() for own in (first, second))


def test_its_owner_removes_it(tmp_path):
    own = Scratch(tmp_path)
    own.remove()
    own.remove()
    assert list(tmp_path.iterdir()) == []
