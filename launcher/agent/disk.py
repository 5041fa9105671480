"""A full disk: recognised by errors and messages, and told with the largest files of the run
folder. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a file system answers where it has no bytes, no inodes or no quota left."""
LARGEST = 3
"""How many of the run folder's files are named."""
MOST_FILES = 50_000
"""The most files of the run folder whose size is read."""
PROBE_BYTES = 1 << 16
"""A disk that takes a file of this size has room."""

_WORDS = "|".join(re.escape(os.strerror(number)) for number in sorted(FULL))
_NUMBERS = "|".join(str(number) for number in sorted(FULL))
_FULL_MESSAGE = re.compile(rf"{_WORDS}|\[Errno (?:{_NUMBERS})\]|PytorchStreamWriter failed writing")
SHARED_MEMORY = re.compile(
    r"unable to (?:allocate|open) shared memory|out of shared memory|</torch_\d+"
)
"""What torch says when /dev/shm is full. It is no disk: its files go away with the processes."""
_FULL_PATH = re.compile(rf"(?:{_WORDS}): '([^']+)'")


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or the one that it came from, says that a disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def says_full(text: str) -> bool:
    """Whether a program's message says that a disk is full."""
    return bool(_FULL_MESSAGE.search(text)) and not SHARED_MEMORY.search(text)


def has_room(folder: Path) -> bool:
    """False where the folder's disk refuses a small file. Other errors count as room."""
    probe = folder / f".room.{os.getpid()}"
    try:
        probe.write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return not is_full(error)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True


def common_folders(checkpoint_dir: str | None) -> tuple[Path, ...]:
    """Where trainings write besides the run folder."""
    checkpoints = (Path(checkpoint_dir),) if checkpoint_dir else ()
    return (*checkpoints, Path(tempfile.gettempdir()), Path("/dev/shm"))


def describe(message: str, run_dir: Path, others: Iterable[Path] = ()) -> str:
    """Which disk is full, and the largest entries of the run folder.

    The disk is that of the path in the error ``message``, or of the first folder without room. If
    the message names no path and all folders have room, the full disk stays unknown.
    """
    folders = (run_dir, *others)
    named = (Path(path) for path in _FULL_PATH.findall(message))
    full = next(named, None) or next((path for path in folders if not has_room(path)), None)
    if full is None and message:
        return "a disk is full, but the error does not name it; the run folder's disk has room"
    mount = mount_of(full or run_dir)
    usage = os.statvfs(mount)
    size, free = (
        show_bytes(blocks * usage.f_frsize) for blocks in (usage.f_blocks, usage.f_bavail)
    )
    summary = f"the disk at {mount} is full: {free} and {usage.f_ffree} inodes free of {size}"
    # A run folder may have millions of files.
    entries = itertools.islice(_files(run_dir), MOST_FILES)
    sizes = ((size, os.path.relpath(path, run_dir)) for path, size in entries if size)
    largest = [f"{path} ({show_bytes(size)})" for size, path in heapq.nlargest(LARGEST, sizes)]
    return f"{summary}; largest in the run folder: {', '.join(largest)}" if largest else summary


def mount_of(path: Path) -> Path:
    """The highest folder above a path that is on the same disk."""
    path = path.absolute()
    path = next(folder for folder in (path, *path.parents) if folder.exists()).resolve()
    return next(folder for folder in (path, *path.parents) if os.path.ismount(folder))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.path.join(path, name), os.lstat(os.path.join(path, name)).st_size


def show_bytes(size: int) -> str:
    """For a person: ``4.0 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
