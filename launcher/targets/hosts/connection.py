"""A line to each host of a run: it sends beats, and brings the run's files and its node's states;
which files are not copied.

What the run writes on the hosts is copied into the run folder here, each byte at its own offset:
after a cut the copy continues where it broke, and bytes that come twice change nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from launcher.agent.atomic_write import write_atomically
from launcher.contract import typed
from launcher.contract.clock import Clock
from launcher.contract.errors import TargetError
from launcher.contract.waits import RETRY_S
from launcher.targets.hosts.plan import run_dir_on
from launcher.targets.hosts.program.messages import (
    Answered,
    FilePart,
    NodeSeen,
    NodesSeen,
    WatchRun,
)
from launcher.targets.hosts.program.wire import BEAT, Record
from launcher.targets.hosts.settings import HostFacts
from launcher.targets.hosts.ssh import Session, Ssh

BEAT_S = 1.0
SILENCE_LIMIT_S = 8.0
"""A host beats every second; after this silence the connection is replaced."""
FULL_RETRY_S = 10.0
"""How long after a failed write here, as on a full disk, the host is asked for missing bytes."""
UNSEEN_S = 5.0
"""So long after its start a node counts as running, although its host does not report it yet."""
COPY_SILENCE_S = 60.0
"""After this silence a host counts as frozen, even if its sshd answers."""
BROUGHT_BYTES = 100 << 20
"""The most that is copied of what the training wrote beside its code on its first node."""
NOT_COPIED_BACK = (
    *("plan.json", "artifact.sh", "submitted.json", "launcher.json", "outcome.json"),
    *("job.json", "code.json", "code.tar.gz", "code.diff"),
)
"""Files of the run folder that the launcher writes itself."""
MISSING = NodeSeen(state="missing")


class HostLine:
    """What is known of one host of a run, kept up to date by a thread."""

    def __init__(
        self,
        ssh: Ssh,
        run_id: str,
        run_dir: Path,
        host: HostFacts,
        node: int,
        clock: Clock,
        *,
        follows: bool = False,
    ) -> None:
        self.has_told = threading.Event()
        self._ssh, self._run_id, self._run_dir = ssh, run_id, run_dir
        self._host, self._node, self._follows = host, node, follows
        self._states: Mapping[str, NodeSeen] = {}
        self._started: dict[str, float] = {}
        self._clock = clock
        self._heard_at = self._opened_at = clock.monotonic()
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> None:
        """Does not block."""
        self._thread.start()

    def close(self) -> None:
        """Ends the line; a node that hears no other line then ends. Idempotent."""
        with self._lock:
            self._closed = True
            if self._session is not None:
                self._session.kill()
        self._thread.join(5.0)

    def started(self, node: str) -> None:
        """Notes that a node, as ``index.incarnation``, was just started there."""
        self._started[node] = self._clock.monotonic()

    def state(self, node: str) -> NodeSeen:
        """What the host last said of a node, as ``index.incarnation``."""
        found = self._states.get(node, MISSING)
        fresh = self._clock.monotonic() - self._started.get(node, float("-inf")) < UNSEEN_S
        return NodeSeen(state="running") if found.state == "missing" and fresh else found

    def silent_s(self) -> float:
        """Seconds since the host was last heard."""
        return self._clock.monotonic() - self._heard_at

    def beat(self) -> None:
        """Tells the host that this launcher lives; ends a silent connection."""
        with self._lock:
            if self._session is None:
                return
            # A connection that took long to open has not been silent for as long.
            open_s = self._clock.monotonic() - self._opened_at
            if min(self.silent_s(), open_s) > SILENCE_LIMIT_S:
                self._session.kill()
            else:
                self._session.say(BEAT)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._watch()
            except (TargetError, OSError):
                # OSError: a full disk here. The run continues, and missing bytes come later.
                if self.silent_s() > SILENCE_LIMIT_S:
                    # A dead shared connection may not have been noticed.
                    self._ssh.disconnect(self._host.host)
            if not self._closed:
                self._clock.sleep(RETRY_S)

    def _watch(self) -> None:
        session = self._ssh.open(self._host.host)
        try:
            asked = watch_request(self._host, self._node, self._run_id, self._run_dir)
            session.send(asked.having(follows=self._follows), limit_s=SILENCE_LIMIT_S)
            with self._lock:
                self._session, self._opened_at = session, self._clock.monotonic()
                if self._closed:
                    session.kill()
            copy = HostCopy(self._run_dir)
            while not copy.is_due():
                message, blob = session.receive()
                self._heard_at = self._clock.monotonic()
                copy.take(message, blob)
                if isinstance(message, NodesSeen):
                    self._states = message.nodes
                    self.has_told.set()
        finally:
            with self._lock:
                self._session = None
            session.close()


class HostCopy:
    """Writes a host's files in one conversation.

    It drops the further bytes of a file that cannot be written here, as on a full disk, so that the
    node's states still arrive; the next conversation brings what is missing.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.missing: dict[str, str] = {}
        """Files whose bytes were dropped, and why."""
        self._failed_at: float | None = None

    def take(self, message: Record, blob: bytes) -> None:
        """Writes a part of a file; other messages are ignored."""
        if not isinstance(message, FilePart) or message.file in self.missing:
            return
        try:
            write_at(self._run_dir, message, blob)
        except OSError as error:
            self.missing[message.file] = str(error.strerror)
            self._failed_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for a new conversation."""
        return self._failed_at is not None and time.monotonic() - self._failed_at > FULL_RETRY_S


def watch_request(host: HostFacts, node: int, run_id: str, run_dir: Path) -> WatchRun:
    """A request for all bytes that are not yet in ``run_dir``; it does not follow the run."""
    return WatchRun(run_dir=run_dir_on(host, run_id), node=node, have=read_sizes(run_dir))


def copy_once(
    session: Session,
    host: HostFacts,
    node: int,
    run_id: str,
    run_dir: Path,
    *,
    beside_code_bytes: int = 0,
    is_last: bool = False,
) -> tuple[Mapping[str, NodeSeen], bool]:
    """Copies the run's files; returns its node's states, and whether a launcher follows the run.

    Also copies at most ``beside_code_bytes`` of what the training wrote beside its code. Raises
    ``TargetError`` if the host is gone, and with ``is_last`` also if a file could not be written
    here, as on a full disk.
    """
    states: Mapping[str, NodeSeen] = {}
    copy = HostCopy(run_dir)
    asked = watch_request(host, node, run_id, run_dir).having(
        once=True, beside_code_bytes=beside_code_bytes
    )
    session.send(asked, limit_s=COPY_SILENCE_S)
    while True:
        message, blob = session.receive(limit_s=COPY_SILENCE_S)
        if isinstance(message, Answered):
            if is_last and copy.missing:
                name, why = next(iter(copy.missing.items()))
                raise TargetError(
                    f"{host.name}: {name} could not be copied here ({why}); the host keeps it",
                    f"correct that in {run_dir}, then {typed.command('stop', run_id)}",
                )
            return states, message.value
        copy.take(message, blob)
        states = message.nodes if isinstance(message, NodesSeen) else states


def read_sizes(run_dir: Path) -> dict[str, int]:
    """Sizes of the files in the run folder that hosts may write."""
    found = {}
    for path in run_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another line may be replacing it
            if path.is_file() and not path.is_symlink() and path.name not in NOT_COPIED_BACK:
                found[path.relative_to(run_dir).as_posix()] = path.stat().st_size
    return found


def write_at(run_dir: Path, part: FilePart, blob: bytes) -> None:
    """Writes a part of a host's file, only inside ``run_dir`` and not over the launcher's files."""
    name = PurePosixPath(part.file)
    if name.is_absolute() or ".." in name.parts or str(name) in (".", *NOT_COPIED_BACK):
        return
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    is_shorter = path.exists() and path.stat().st_size > len(blob)
    if part.new and (path.suffix == ".json" or is_shorter):
        # The file was replaced: a reader sees either the old or the new one.
        write_atomically(path, blob)
        os.utime(path, (part.at, part.at))
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        written = 0
        while written < len(blob):
            # A nearly full disk takes only some of the bytes.
            written += os.pwrite(descriptor, blob[written:], part.offset + written)
        # By the host's clock, whose offset reports correct.
        os.utime(descriptor, (part.at, part.at))
    finally:
        os.close(descriptor)


def send_beats(lines: Callable[[], Iterable[HostLine]]) -> threading.Event:
    """Sends beats on all lines of a run, from one thread, until the event is set."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            for line in lines():
                line.beat()

    threading.Thread(target=beat, daemon=True).start()
    return is_over
