"""A full disk: recognised, waited for, and named. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from launcher.contract.errors import DiskFullError

T = TypeVar("T")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a file system answers where it has no bytes, no inodes or no quota left."""
CAUSE = "disk-full"
"""Why a worker ended that could not write to the disk of the run folder."""
ROOM_BYTES = 1 << 20
"""With less than this, or a twentieth of a small disk, nothing new is started."""
PAUSE_S = 1.0
"""Between two looks at a full disk."""
LOOK_LIMIT_S = 2.0
LOOK_LIMIT_ENTRIES = 50_000
"""Limits of the search for what fills a disk."""
LARGEST = 3

_PROBE_BYTES = 1 << 16
_WORDS = "|".join(re.escape(os.strerror(number)) for number in sorted(FULL))
_NUMBERS = "|".join(str(number) for number in sorted(FULL))
_SAID = re.compile(rf"{_WORDS}|\[Errno (?:{_NUMBERS})\]|PytorchStreamWriter failed writing")
_NAMED = re.compile(rf"(?:{_WORDS}): '([^']+)'")


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or the one that it came from, says that a disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def says_full(text: str) -> bool:
    """Whether a program's message says that a disk is full."""
    return bool(_SAID.search(text))


def check_room(folder: Path) -> None:
    """Raises OSError, as a write would, where a folder's disk has no room for a new start."""
    found = os.statvfs(folder)
    if _free_bytes(found) < min(ROOM_BYTES, found.f_blocks * found.f_frsize // 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    # A used-up quota shows only in a write.
    probe = folder / f".room.{os.getpid()}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def has_room(folder: Path) -> bool:
    """False where a folder's disk is full. Other errors count as room."""
    try:
        check_room(folder)
    except OSError as error:
        return not is_full(error)
    return True


def find_full(said: str, folders: Iterable[Path]) -> Path | None:
    """Which disk a message speaks of, as a path on it; None where none of them is full now."""
    if named := _NAMED.search(said):
        return _existing(Path(named[1]))
    return next((folder for folder in map(_existing, folders) if not has_room(folder)), None)


def common_folders(checkpoint_dir: str | None) -> tuple[Path, ...]:
    """Where trainings write besides the run folder."""
    checkpoints = (Path(checkpoint_dir),) if checkpoint_dir else ()
    return (*checkpoints, Path(tempfile.gettempdir()), Path("/dev/shm"))


def are_on_one_disk(one: Path, other: Path) -> bool:
    """Whether two paths, or the folders that they would be made in, share a file system."""
    with contextlib.suppress(OSError):
        return _existing(one).stat().st_dev == _existing(other).stat().st_dev
    return False


def retry_while_full(
    act: Callable[[], T],
    folders: tuple[Path, ...],
    *,
    limit_s: float,
    pause: Callable[[float], object],
    tell: Callable[[str], None],
) -> T:
    """Does ``act`` again while a disk refuses it, for ``limit_s`` seconds; tells that once.

    ``folders`` are what ``act`` writes to; what fills the disk is looked for in the first. Raises
    DiskFullError, which names the disk, once the time is over. Other errors of ``act``
    and ``pause`` pass through at once.
    """
    end, told = time.monotonic() + limit_s, False
    while True:
        try:
            return act()
        except OSError as error:
            if not is_full(error):
                raise
            where = _disk_of(error, folders)
            left_s = end - time.monotonic()
            if left_s <= 0:
                waited = f"; waited {limit_s:g} s for room" if limit_s else ""
                raise DiskFullError(describe(where, folders[0]) + waited) from error
        if not told:
            told = True
            tell(f"{describe(where, folders[0])}; waiting for room, at most {limit_s:g} s")
        pause(min(PAUSE_S, left_s))


def _disk_of(error: OSError, folders: tuple[Path, ...]) -> Path:
    if isinstance(error.filename, str | os.PathLike):
        return _existing(Path(error.filename))
    found = find_full("", folders)
    return _existing(folders[0]) if found is None else found


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))


# -- in words --------------------------------------------------------------------------------------


def describe(path: Path, run_dir: Path) -> str:
    """Which disk is full, its size, its free room, and the largest files of the run on it."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return f"the disk of {path} is full ({error.strerror})"
    size, free = found.f_blocks * found.f_frsize, _free_bytes(found)
    told = [f"the disk of {path} is full: {_bytes(size)} at {mount_of(path)}, {_bytes(free)} free"]
    lacks_inodes = found.f_files > 0 and found.f_ffree == 0
    if lacks_inodes:
        told.append(f"all of its {found.f_files} inodes are in use")
    elif free >= ROOM_BYTES:
        told.append("a quota may be used up")
    if are_on_one_disk(path, run_dir):
        told.append(_describe_contents(_existing(run_dir), by_number=lacks_inodes))
    return "; ".join(told)


def mount_of(path: Path) -> Path:
    """The highest folder above a path that is on the same disk."""
    path = _existing(path).resolve()
    while path != path.parent and are_on_one_disk(path, path.parent):
        path = path.parent
    return path


def _describe_contents(run_dir: Path, *, by_number: bool) -> str:
    sizes: dict[str, int] = {}
    entries: Counter[str] = Counter()
    for entry in _walk(run_dir):
        entries[os.path.dirname(entry.path)] += 1
        with contextlib.suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                sizes[entry.path] = entry.stat(follow_symlinks=False).st_blocks * 512
    if by_number:
        most = [f"{_under(path, run_dir)} ({n} entries)" for path, n in entries.most_common(1)]
        return f"the run has {entries.total()} of them, most in {', '.join(most) or 'nothing'}"
    total = sum(sizes.values())
    largest = [(p, size) for p, size in Counter(sizes).most_common(LARGEST) if size > total / 100]
    named = ", ".join(f"{_under(path, run_dir)} ({_bytes(size)})" for path, size in largest)
    held = f"the run folder holds {_bytes(total)} of it"
    return f"{held}, most in {named}" if named else held


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries below a folder, until a limit is reached."""
    end, left, folders = time.monotonic() + LOOK_LIMIT_S, LOOK_LIMIT_ENTRIES, [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                left -= 1
                if left < 0 or time.monotonic() > end:
                    return
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                yield entry


def _under(path: str, run_dir: Path) -> str:
    return os.path.relpath(path, run_dir)


def _free_bytes(found: os.statvfs_result) -> int:
    """Some of the free blocks are kept for root."""
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


def _bytes(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
