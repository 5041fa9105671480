"""Who holds what on this host: one small file for each node of a run, taken under one lock.

Expiry is the file's time of change, counted from the boot; the folder is gone after a reboot. So a
wrong time of day neither ends nor keeps a lease, and a renewal only touches a file, which works on
a full disk and cannot bring back a released lease. Releasing the last lease removes the folder.

All users may write to the folder, so a file in it is a lease only under the name that its content
says, and a run's own lease only if this user has made it. No link is followed, no pipe waited for.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.targets.hosts.program.messages import Lease

LOCK_LIMIT_S = 10.0
SUFFIX = ".lease"
LOCK = "lock"
MOST_BYTES = 1 << 16
"""More than any lease: what another user writes must not fill the memory."""
PLAINLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class HeldError(Exception):
    """Other runs hold what was asked for; ``leases`` are theirs."""

    def __init__(self, leases: list[Lease]) -> None:
        super().__init__("held by another run")
        self.leases = leases


class LeaseBook:
    """The leases of one host, in a folder that all its users may write to."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def take(self, lease: Lease, ttl_s: float, slots_limit: int | None) -> None:
        """Replaces a lease of the same run and node. Raises ``HeldError``.

        ``slots_limit`` is how many slots the host has in all, None for no limit.
        """
        with self._locked():
            others = [
                other
                for other in self.read()
                if other.live and self._path(other) != self._path(lease)
            ]
            held = [other for other in others if set(other.gpus) & set(lease.gpus)]
            slots = sum(other.slots for other in (*others, lease))
            if slots_limit is not None and not lease.gpus and slots > slots_limit:
                held = others or [lease]
            if held:
                raise HeldError(held)
            self._write(lease.having(taken_at=time.time()), ttl_s)

    def renew(self, run_id: str, ttl_s: float, nodes: tuple[int, ...] | None = None) -> int:
        """Renews a run's leases, only of ``nodes`` if given; returns how many there were.

        An expired lease is taken again, unless another run holds the same by now.
        """
        own = self._of(run_id, nodes)
        for lease in own:
            # On a full disk, or while the lock's holder is frozen, the next renewal tries again.
            with suppress(OSError, HeldError):
                if lease.live:
                    _set_expiry(self._path(lease), ttl_s)
                else:
                    self.take(lease, ttl_s, None)
        return len(own)

    def release(self, run_id: str, nodes: tuple[int, ...] | None = None) -> None:
        """Removes a run's leases, only of ``nodes`` if given. Idempotent."""
        for lease in self._of(run_id, nodes):
            with suppress(OSError):
                self._path(lease).unlink()
        if self._folder.is_dir():
            with suppress(OSError), self._locked():
                self._remove_if_empty()

    def seconds_left(self, run_id: str, node_index: int) -> float | None:
        """Until the lease expires, negative after that; None where there is none."""
        return next((lease.left_s for lease in self._of(run_id, (node_index,))), None)

    def read(self) -> list[Lease]:
        """The leases of all users."""
        found = map(_read, sorted(self._folder.glob(f"*{SUFFIX}")))
        return [lease for lease in found if lease is not None]

    def _of(self, run_id: str, nodes: tuple[int, ...] | None = None) -> list[Lease]:
        """A run's leases that this user has made."""
        if nodes is None:
            paths = sorted(self._folder.glob(f"{run_id}.*{SUFFIX}"))
        else:
            paths = [self._folder / _name(run_id, node_index) for node_index in nodes]
        found = [_read(path, own=True) for path in paths]
        return [lease for lease in found if lease is not None and lease.run_id == run_id]

    def _path(self, lease: Lease) -> Path:
        return self._folder / _name(lease.run_id, lease.node_index)

    def _write(self, lease: Lease, ttl_s: float) -> None:
        path = self._path(lease)
        # Under a name that nobody can guess: a link of another user there would be in the way.
        temporary = path.with_suffix(f".{os.urandom(8).hex()}.tmp")
        try:
            with temporary.open("x") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(lease.to_json())
            _set_expiry(temporary, ttl_s)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _remove_if_empty(self) -> None:
        """Only for the lock's holder: others that wait for the lock make a new one."""
        if os.listdir(self._folder) == [LOCK]:
            (self._folder / LOCK).unlink()
            self._folder.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + LOCK_LIMIT_S
        while (lock := self._try_lock()) is None:
            if time.monotonic() > deadline:
                raise OSError(f"{self._folder}/{LOCK} is held by another process")
            time.sleep(0.01)
        try:
            yield
        finally:
            os.close(lock)

    def _try_lock(self) -> int | None:
        """The lock's descriptor; None while another process has it, or when it was removed."""
        self._make_folder()
        try:
            lock = self._open_lock()
        except FileNotFoundError:
            return None
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == (self._folder / LOCK).stat().st_ino:
                return lock
        os.close(lock)
        return None

    def _make_folder(self) -> None:
        if self._folder.is_dir():
            return
        temporary = self._folder.with_name(f".{self._folder.name}.{os.getpid()}")
        temporary.mkdir(parents=True, exist_ok=True)
        # Like /tmp: all users take leases, and nobody can remove another user's.
        temporary.chmod(0o1777)
        try:
            temporary.rename(self._folder)
        except OSError:
            temporary.rmdir()

    def _open_lock(self) -> int:
        lock = self._folder / LOCK
        # Writable for all from the start: a process that dies before a chmod would lock others out.
        usual = os.umask(0)
        try:
            # Without O_EXCL kernels refuse to open another user's file in a folder like /tmp.
            with suppress(FileExistsError):
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o666))
        finally:
            os.umask(usual)
        return os.open(lock, PLAINLY)


def _name(run_id: str, node_index: int) -> str:
    return f"{run_id}.{node_index}{SUFFIX}"


def _set_expiry(path: Path, ttl_s: float) -> None:
    at_ns = time.monotonic_ns() + int(ttl_s * 1e9)
    os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)


def _read(path: Path, *, own: bool = False) -> Lease | None:
    """A lease, with ``own`` only one that this user has made; None for any other file."""
    # What another user wrote may be anything: deep lists are a ``RecursionError``.
    wrong = (OSError, ValueError, TypeError, RecursionError)
    with suppress(*wrong), open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or (own and found.st_uid != os.getuid()):
            return None
        lease = Lease.from_json(json.loads(file.read(MOST_BYTES)))
        if path.name != _name(lease.run_id, lease.node_index) or not _is_sound(lease):
            return None
        expires_s = found.st_mtime_ns / 1e9
        left_s, age_s = expires_s - time.monotonic(), max(0.0, time.time() - lease.taken_at)
        return lease.having(expires_s=expires_s, live=left_s > 0, left_s=left_s, age_s=age_s)
    return None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | PLAINLY)


def _is_sound(lease: Lease) -> bool:
    """Whether the fields have the types that others rely on."""
    words = (lease.run_id, lease.owner, lease.launcher, *lease.gpus)
    numbers = type(lease.node_index) is int and type(lease.slots) is int and lease.slots >= 0
    return all(type(word) is str for word in words) and numbers and type(lease.taken_at) is float
