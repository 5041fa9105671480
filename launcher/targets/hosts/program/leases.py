"""Who holds what on this host: one small file for each node of a run, taken under one lock.

No process serves them. Expiry is counted on the clock that runs since the boot, and the folder is
gone with a reboot: a wrong time of day neither ends a lease nor keeps one. The last lease takes the
folder with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK_LIMIT_S = 10.0
SUFFIX = ".lease"
LOCK = "lock"

Lease = dict[str, Any]
"""run_id, node_index, owner, launcher, gpus (ids), slots, detached, taken_at (epoch); when read
also expires_s (since boot), which is the file's time of change: to renew it is to touch a file that
is there, which neither a full disk nor a release at the same moment turns into something else."""


class HeldError(Exception):
    """Somebody else holds what was asked for; ``leases`` are theirs."""

    def __init__(self, leases: list[Lease]) -> None:
        super().__init__("held by another run")
        self.leases = leases


class LeaseBook:
    """The leases of one host, in a folder that all its users may write to."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def take(self, lease: Lease, ttl_s: float, slots_limit: int | None) -> None:
        """All of it or nothing; one of the same run and node is replaced.

        ``slots_limit`` is how many slots the host has in all, None for no limit. Raises
        ``HeldError``.
        """
        with self._locked():
            others = [
                other
                for other in self.read()
                if other["live"]
                and (other["run_id"], other["node_index"]) != (lease["run_id"], lease["node_index"])
            ]
            held = [other for other in others if set(other["gpus"]) & set(lease["gpus"])]
            if slots_limit is not None and not lease["gpus"]:
                taken = sum(other["slots"] for other in others)
                if taken + lease["slots"] > slots_limit:
                    held = others or [lease]
            if held:
                raise HeldError(held)
            self._write({**lease, "taken_at": time.time()}, ttl_s)

    def renew(self, run_id: str, ttl_s: float, nodes: tuple[int, ...] | None = None) -> int:
        """Moves the expiry of a run's leases, of ``nodes`` alone if given; how many there were.

        One that has expired meanwhile is taken again, if nobody else has what it holds by now.
        """
        own = [le for le in self._of(run_id) if nodes is None or le["node_index"] in nodes]
        for lease in own:
            # A full disk or a lock whose holder is frozen: the next renewal tries again.
            with suppress(OSError, HeldError):
                if lease["expires_s"] < time.monotonic():
                    self.take(lease, ttl_s, None)
                else:
                    _set_expiry(self._path(lease), ttl_s)
        return len(own)

    def release(self, run_id: str, nodes: tuple[int, ...] | None = None) -> None:
        """Gives back a run's leases, of ``nodes`` alone if given. Idempotent."""
        for lease in self._of(run_id):
            if nodes is None or lease["node_index"] in nodes:
                with suppress(OSError):
                    self._path(lease).unlink()
        if self._folder.is_dir():
            with suppress(OSError), self._locked():
                self._remove_if_empty()

    def seconds_left(self, run_id: str, node_index: int) -> float | None:
        """Until the lease expires, negative after that; None where there is none."""
        lease = _read(self._path({"run_id": run_id, "node_index": node_index}))
        return None if lease is None else lease["expires_s"] - time.monotonic()

    def read(self) -> list[Lease]:
        """All leases, each with ``live`` and ``age_s`` and ``left_s`` in seconds."""
        found = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            lease = _read(path)
            if lease is not None:
                left_s = lease["expires_s"] - time.monotonic()
                age_s = max(0.0, time.time() - lease["taken_at"])
                found.append({**lease, "live": left_s > 0, "left_s": left_s, "age_s": age_s})
        return found

    def _of(self, run_id: str) -> list[Lease]:
        paths = sorted(self._folder.glob(f"{run_id}.*{SUFFIX}"))
        found = [lease for lease in map(_read, paths) if lease is not None]
        return [lease for lease in found if lease["run_id"] == run_id]

    def _path(self, lease: Lease) -> Path:
        return self._folder / f"{lease['run_id']}.{lease['node_index']}{SUFFIX}"

    def _write(self, lease: Lease, ttl_s: float) -> None:
        path = self._path(lease)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(lease))
        temporary.chmod(0o644)
        _set_expiry(temporary, ttl_s)
        temporary.replace(path)

    def _remove_if_empty(self) -> None:
        """The lock's holder may: whoever waited for it finds it gone, and makes another."""
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
        """The lock's descriptor; None where another has it, or removed it meanwhile."""
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
        # As /tmp: everybody takes leases, nobody removes another's.
        temporary.chmod(0o1777)
        try:
            temporary.rename(self._folder)
        except OSError:
            temporary.rmdir()

    def _open_lock(self) -> int:
        lock = self._folder / LOCK
        # Everybody's from its first moment: one who dies before a chmod would shut others out.
        usual = os.umask(0)
        try:
            # O_EXCL, as kernels refuse O_CREAT alone for another's file in a folder like /tmp.
            with suppress(FileExistsError):
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o666))
        finally:
            os.umask(usual)
        return os.open(lock, os.O_RDONLY)


def _set_expiry(path: Path, ttl_s: float) -> None:
    at_ns = time.monotonic_ns() + int(ttl_s * 1e9)
    os.utime(path, ns=(at_ns, at_ns))


def _read(path: Path) -> Lease | None:
    with suppress(OSError, ValueError), path.open() as file:
        lease = json.load(file)
        if isinstance(lease, dict) and "run_id" in lease:
            return {**lease, "expires_s": os.fstat(file.fileno()).st_mtime_ns / 1e9}
    return None
