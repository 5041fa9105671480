"""A line to each host of a run: its files and its nodes' states come, heartbeats go.

What the run writes on the hosts is copied into the run folder here, each byte at its own offset:
after a cut the copy goes on where it broke, and what comes twice lands on itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.agent import disk
from launcher.contract.errors import TargetError
from launcher.targets.hosts.plan import run_dir_on
from launcher.targets.hosts.settings import HostFacts
from launcher.targets.hosts.ssh import Session, Ssh

BEAT_S = 1.0
LEASE_TTL_S = 10.0
"""How long a followed run outlives its launcher, or its launcher's network."""
SILENCE_LIMIT_S = 8.0
"""A host beats every second; after this the connection is dropped and made anew."""
RETRY_S = 1.0
FULL_RETRY_S = 10.0
"""How long a full disk here is left alone before the host is asked for what is missing."""
FREE_LIMIT_S = 3.0
"""How long a host may take to end its watch; it is asked through a new connection after that."""
STARTING_S = 5.0
"""How long a node that was just started may be unknown to a line that looked before."""
COPY_SILENCE_S = 60.0
"""After that without a word a host is frozen, though its sshd may live."""
NOT_COPIED_BACK = ("plan.json", "artifact.sh", "submitted.json", "launcher.json", "outcome.json")
"""Files of the run folder that are the launcher's own."""


class HostLine:
    """What is known of one host of a run; a thread of its own keeps it so."""

    def __init__(
        self,
        ssh: Ssh,
        run_id: str,
        run_dir: Path,
        host: HostFacts,
        nodes: list[int],
        ttl_s: float = 0.0,
        *,
        follows: bool = False,
    ) -> None:
        self._follows = follows
        self.has_told = threading.Event()
        self.host, self.nodes = host, nodes
        self._ssh, self._run_id, self._run_dir, self._ttl_s = ssh, run_id, run_dir, ttl_s
        self._states: dict[str, dict[str, Any]] = {}
        self._started: dict[str, float] = {}
        self._heard_at = self._opened_at = time.monotonic()
        self._session: Session | None = None
        self._hears = False
        """Whether what is said now is heard as a beat: the host has answered, so it watches."""
        self._freed: Session | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> None:
        """Does not block."""
        self._thread.start()

    def close(self) -> None:
        """Ends it; the host's lease then runs out unless somebody releases it."""
        with self._lock:
            self._closed = True
            if self._session is not None:
                self._session.kill()
        self._thread.join(5.0)
        if self._freed is not None:
            self._freed.close()

    def free(self) -> Session | None:
        """Closes it, and returns its conversation for other requests; None where it is cut.

        Saves a connection and a start of Python for each host just when all are asked to end.
        """
        with self._lock:
            self._closed = True
            if self._session is None or not self._hears:
                return None
            self._hears = False
            self._session.end_watch()
        self._thread.join(FREE_LIMIT_S)
        return self._freed

    def started(self, node: str) -> None:
        """A node, as ``index.incarnation``, was just started there."""
        self._started[node] = time.monotonic()

    def state(self, node: str) -> dict[str, Any]:
        """What the host last said of a node, as ``index.incarnation``."""
        found = self._states.get(node, {"state": "missing"})
        fresh = time.monotonic() - self._started.get(node, float("-inf")) < STARTING_S
        return {"state": "running"} if found["state"] == "missing" and fresh else found

    def silent_s(self) -> float:
        """Since the host was last heard."""
        return time.monotonic() - self._heard_at

    def beat(self) -> None:
        """Renews the lease there, and drops a connection that has gone silent."""
        with self._lock:
            # Under the lock: no beat may come after the end of the watch.
            if self._session is None:
                return
            # A conversation that took long to open is not silent from its first moment.
            if min(self.silent_s(), time.monotonic() - self._opened_at) > SILENCE_LIMIT_S:
                self._session.kill()
            elif self._hears:
                self._session.beat()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._watch()
            except (TargetError, OSError):
                # OSError: a full disk here. The run goes on; what is missing comes later.
                if self.silent_s() > SILENCE_LIMIT_S:
                    # A shared connection may be dead without knowing.
                    self._ssh.disconnect(self.host.host)
            if not self._closed:
                time.sleep(RETRY_S)

    def _watch(self) -> None:
        session = self._ssh.open(self.host.host)
        with self._lock:
            self._session, self._opened_at = session, time.monotonic()
            if self._closed:
                session.kill()
        try:
            asked = watch_request(self.host, self.nodes, self._run_id, self._run_dir)
            session.send({**asked, "ttl_s": self._ttl_s, "follows": self._follows})
            copy = HostCopy(self._run_dir)
            while not copy.is_due():
                message, blob = session.receive()
                self._heard_at = time.monotonic()
                if "done" in message:
                    self._freed = session
                    return
                copy.take(message, blob)
                self._take_states(message)
                with self._lock:
                    self._hears = not self._closed
        finally:
            with self._lock:
                self._session, self._hears = None, False
            if session is not self._freed:
                session.close()

    def _take_states(self, message: dict[str, Any]) -> None:
        if "nodes" in message:
            self._states = message["nodes"]
            self.has_told.set()


class HostCopy:
    """Takes a host's files in one conversation.

    On a full disk here all that come later are left out, so that what the host tells of its nodes
    still arrives; the next conversation brings what is missing.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._full_at: float | None = None

    def take(self, message: dict[str, Any], blob: bytes) -> None:
        """Whatever is no part of a file is left alone."""
        if "file" not in message or self._full_at is not None:
            return
        try:
            write_at(self._run_dir, message, blob)
        except OSError as error:
            if not disk.is_full(error):
                raise
            self._full_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for another conversation."""
        return self._full_at is not None and time.monotonic() - self._full_at > FULL_RETRY_S


def watch_request(host: HostFacts, nodes: list[int], run_id: str, run_dir: Path) -> dict[str, Any]:
    """Asks for everything that is not yet in ``run_dir``, as one who only looks on."""
    return {
        "op": "watch",
        "run_id": run_id,
        "run_dir": run_dir_on(host, run_id),
        "lease_dir": host.host.lease_dir,
        "nodes": nodes,
        "have": read_sizes(run_dir),
        "ttl_s": 0.0,
        "once": False,
        "follows": False,
    }


def copy_once(
    session: Session, host: HostFacts, nodes: list[int], run_id: str, run_dir: Path
) -> tuple[dict[str, dict[str, Any]], bool]:
    """Brings everything that the host has; the nodes' states, and whether a launcher follows them.

    Raises ``TargetError`` where the host is gone.
    """
    states: dict[str, dict[str, Any]] = {}
    copy = HostCopy(run_dir)
    asked = {**watch_request(host, nodes, run_id, run_dir), "once": True}
    session.send(asked, limit_s=COPY_SILENCE_S)
    while True:
        message, blob = session.receive(limit_s=COPY_SILENCE_S)
        if "done" in message:
            return states, message["followed"]
        copy.take(message, blob)
        states.update(message.get("nodes", {}))


def read_sizes(run_dir: Path) -> dict[str, int]:
    """Size of every file in the run folder that hosts may add to."""
    found = {}
    for path in run_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another line may be replacing it
            if path.is_file() and not path.is_symlink() and path.name not in NOT_COPIED_BACK:
                found[path.relative_to(run_dir).as_posix()] = path.stat().st_size
    return found


def write_at(run_dir: Path, message: dict[str, Any], blob: bytes) -> None:
    """Puts some bytes of a host's file at their place. A host writes nowhere else than there."""
    name = PurePosixPath(message["file"])
    if name.is_absolute() or ".." in name.parts or name.name in ("", *_own_names(name)):
        return
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if message["new"] and (path.suffix == ".json" or _size(path) > len(blob)):
        # Another file by that name: a reader sees the old one or the new one.
        temporary = path.with_name(f".{path.name}.{threading.get_ident()}")
        try:
            temporary.write_bytes(blob)
            os.utime(temporary, (message["at"], message["at"]))
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        written = 0
        while written < len(blob):
            # A disk that is nearly full takes a part.
            written += os.pwrite(descriptor, blob[written:], message["offset"] + written)
        # The host's own time, as in all that its nodes write: a report corrects for its clock.
        os.utime(descriptor, (message["at"], message["at"]))
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _own_names(name: PurePosixPath) -> tuple[str, ...]:
    return NOT_COPIED_BACK if len(name.parts) == 1 else ()


class LineRenewer:
    """Beats on all lines of a run, from one thread."""

    def __init__(self, lines: Callable[[], Iterable[HostLine]]) -> None:
        self._lines, self._over = lines, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> None:
        """Does not block."""
        self._thread.start()

    def close(self) -> None:
        """No beat comes after this."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            for line in self._lines():
                line.beat()
