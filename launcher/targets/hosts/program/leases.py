"""Who holds what on this host: a file for each GPU or slot, locked as long as a node holds it.

A node's keeper has the files open, so the kernel unlocks them however the keeper ends. What a file
says of its holder counts only while it is locked. A keeper that ends normally removes its files,
and the folder if it is then empty.

All users may write to the folder: no link is followed, no pipe waited for, and a locked file that
holds no lease is shown as somebody's.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from launcher.contract.waits import SOON_S
from launcher.targets.hosts.program.messages import Lease

TAKE_LIMIT_S = 2.0
"""A reader of a lease locks it for a moment, and a killed keeper takes a moment to be gone."""
GPU, SLOT = "gpu-", "slot-"
MOST_BYTES = 1 << 16
"""More than any lease: what another user writes must not fill the memory."""
PLAINLY = os.O_NOFOLLOW | os.O_NONBLOCK


class HeldError(Exception):
    """Other runs hold what was asked for; ``leases`` are theirs."""

    def __init__(self, leases: list[Lease]) -> None:
        super().__init__("held by another run")
        self.leases = leases


def acquire(folder: str, lease: Lease, slots_limit: int | None) -> list[int]:
    """Locks what the lease names; returns the open files that hold it. Raises ``HeldError``.

    ``slots_limit`` is how many slots the host has in all, None for no limit.
    """
    deadline = time.monotonic() + TAKE_LIMIT_S
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    # Files are everybody's from the start: the next holder may be another user.
    usual = os.umask(0)
    try:
        while not (files := _try_to_take(Path(folder), lease, slots_limit)):
            if time.monotonic() > deadline:
                wanted = set(lease.gpus)
                others = [le for le in read_leases(folder) if le.slots or wanted & {*le.gpus}]
                raise HeldError(others or [lease])
            time.sleep(SOON_S)
    finally:
        os.umask(usual)
    data = lease.having(taken_at=time.time()).to_json().encode()
    try:
        for file in files:
            os.ftruncate(file, 0)
            os.pwrite(file, data, 0)
    except OSError:
        release(files)
        raise
    return files


def _try_to_take(folder: Path, lease: Lease, slots_limit: int | None) -> list[int]:
    """All files of the lease, locked, or none."""
    names: Iterable[str] = (f"{GPU}{id}" for id in lease.gpus)
    if not lease.gpus:
        places = count() if slots_limit is None else range(slots_limit)
        names = (f"{SLOT}{place}" for place in places)
    wanted = len(lease.gpus) or lease.slots
    files: list[int] = []
    # Like /tmp: all users take leases, and nobody can remove another user's.
    with suppress(FileExistsError):
        folder.mkdir(0o1777)
    for name in names:
        if (file := _try_to_lock(folder / name)) is not None:
            files.append(file)
        if len(files) == wanted:
            return files
    release(files)
    return []


def _try_to_lock(path: Path) -> int | None:
    """The file, locked; None if another process has it, or has just removed it."""
    with suppress(FileNotFoundError):
        file = _open(path)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == path.lstat().st_ino:
                return file
        os.close(file)
    return None


def _open(path: Path) -> int:
    # Without O_EXCL kernels refuse to open another user's file in a folder like /tmp.
    with suppress(FileExistsError):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    return os.open(path, os.O_RDWR | PLAINLY)


def release(files: Iterable[int]) -> None:
    """Gives back what these files hold, and removes them and their empty folder."""
    for file in files:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        # Another user's file stays, unlocked.
        with suppress(OSError):
            path.unlink()
        os.close(file)
        with suppress(OSError):
            path.parent.rmdir()


def read_leases(folder: str) -> list[Lease]:
    """What the nodes of all users hold, a lease for each node."""
    leases: dict[tuple[str, int], Lease] = {}
    for name, lease in _read_all(Path(folder)):
        lease = leases.get((lease.run_id, lease.node_index), lease.having(gpus=(), slots=0))
        # The file's name says what is held, whatever its user wrote into it.
        if name.startswith(GPU):
            lease = lease.having(gpus=(*lease.gpus, name[len(GPU) :]))
        else:
            lease = lease.having(slots=lease.slots + 1)
        leases[lease.run_id, lease.node_index] = lease
    return list(leases.values())


def _read_all(folder: Path) -> Iterator[tuple[str, Lease]]:
    for path in sorted((*folder.glob(f"{GPU}*"), *folder.glob(f"{SLOT}*"))):
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | PLAINLY)
            try:
                if stat.S_ISREG(os.fstat(file).st_mode) and _is_locked(file):
                    yield path.name, parse_lease(os.pread(file, MOST_BYTES, 0))
            finally:
                os.close(file)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def parse_lease(data: bytes) -> Lease:
    """The lease that a file holds; somebody's if its holder wrote something else."""
    # Deep lists are a ``RecursionError``.
    with suppress(ValueError, TypeError, RecursionError):
        lease = Lease.from_json(json.loads(data))
        words = all(type(word) is str for word in (lease.run_id, lease.owner))
        numbers = type(lease.node_index) is int and type(lease.taken_at) is float
        if words and numbers:
            return lease.having(age_s=max(0.0, time.time() - lease.taken_at))
    return Lease(run_id="unknown", node_index=0, owner="somebody", gpus=(), slots=0)
