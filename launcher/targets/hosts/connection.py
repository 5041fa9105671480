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
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.hosts.plan import run_dir_on
from launcher.targets.hosts.program.messages import (
    IDLE_LIMIT_S,
    Answered,
    FilePart,
    NodeSeen,
    NodesSeen,
    Record,
)
from launcher.targets.hosts.program.watch import send_run, watch_run
from launcher.targets.hosts.settings import HostsSettings
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import Session

BEAT_S = 1.0
SILENCE_LIMIT_S = 8.0
"""A host reports every second; after this silence the connection is replaced."""
FULL_RETRY_S = 10.0
"""How long after a failed write here, as on a full disk, the host is asked for missing bytes."""
COPY_SILENCE_S = 60.0
"""After this silence a host counts as frozen, even if its sshd answers."""
BROUGHT_BYTES = 100 << 20
"""The most that is copied of what the training wrote beside its code on its first node."""
NOT_COPIED_BACK = (
    *("plan.json", "artifact.sh", "submitted.json", "launcher.json", "outcome.json"),
    *("job.json", "code.json", "code.tar.gz", "code.diff"),
)
"""Files of the run folder that the launcher writes itself."""
MISSING, RUNNING = NodeSeen(state="missing"), NodeSeen(state="running")


class HostLine:
    """What is known of one host of a run, kept up to date by a thread."""

    def __init__(
        self, ssh: Ssh, plan: LaunchPlan, index: int, clock: Clock, *, follows: bool = False
    ) -> None:
        """``follows``: this launcher drives the run, whose node ends once it is not heard."""
        self.has_reported = threading.Event()
        self._ssh, self._plan, self._index, self._follows = ssh, plan, index, follows
        self._host = HostsSettings.of(plan).hosts[index]
        self._states: Mapping[str, NodeSeen] = {}
        self._started: set[str] = set()
        """Nodes that were started, and that the host has not reported yet."""
        self._clock = clock
        self._heard_at = self._opened_at = clock.monotonic()
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
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
        self._started.add(node)

    def state(self, node: str) -> NodeSeen:
        """What the host last said of a node, as ``index.incarnation``."""
        # A report may be long in coming, as after a large file.
        return self._states.get(node, RUNNING if node in self._started else MISSING)

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
                self._session.beat()

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
        session, run_dir = self._ssh.open(self._host.host), Path(self._plan.run_dir)
        try:
            session.ask(
                SILENCE_LIMIT_S,
                watch_run,
                run_dir=run_dir_on(self._host, self._plan.run_id),
                node=self._index,
                have=read_sizes(run_dir),
                follows=self._follows,
            )
            with self._lock:
                self._session, self._opened_at = session, self._clock.monotonic()
                if self._closed:
                    session.kill()
            copy = HostCopy(run_dir)
            while not copy.is_due():
                message, blob = session.receive()
                self._heard_at = self._clock.monotonic()
                copy.write(message, blob)
                if isinstance(message, NodesSeen):
                    self._states = message.nodes
                    self._started.difference_update(message.nodes)
                    self.has_reported.set()
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

    def write(self, message: Record, blob: bytes) -> None:
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


def copy_once(
    session: Session,
    plan: LaunchPlan,
    index: int,
    *,
    beside_code_bytes: int = 0,
    is_last: bool = False,
) -> tuple[Mapping[str, NodeSeen], bool]:
    """Copies the run's files; returns its node's states, and whether a launcher follows the run.

    Also copies at most ``beside_code_bytes`` of what the training wrote beside its code. Raises
    ``TargetError`` if the host is gone, and with ``is_last`` also if a file could not be written
    here, as on a full disk.
    """
    host, run_dir = HostsSettings.of(plan).hosts[index], Path(plan.run_dir)
    copy = HostCopy(run_dir)
    session.ask(
        IDLE_LIMIT_S,
        send_run,
        run_dir=run_dir_on(host, plan.run_id),
        node=index,
        have=read_sizes(run_dir),
        beside_code_bytes=beside_code_bytes,
    )
    while True:
        message, blob = session.receive(limit_s=COPY_SILENCE_S)
        if isinstance(message, Answered):
            break
        copy.write(message, blob)
    if is_last and copy.missing:
        name, why = next(iter(copy.missing.items()))
        raise TargetError(
            f"{host.name}: {name} could not be copied here ({why}); the host keeps it",
            f"correct that in {run_dir}, then {typed.command('stop', plan.run_id)}",
        )
    states, is_followed = message.value
    return states, is_followed


def read_sizes(run_dir: Path) -> dict[str, int]:
    """Sizes of the files in the run folder that hosts may write."""
    sizes = {}
    for path in run_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another line may be replacing it
            if path.is_file() and not path.is_symlink() and path.name not in NOT_COPIED_BACK:
                sizes[path.relative_to(run_dir).as_posix()] = path.stat().st_size
    return sizes


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
    """Sends beats on all lines of a run, from one thread, until the event is set.

    That thread touches no file: a file server that hangs here ends no node.
    """
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            for line in lines():
                line.beat()

    threading.Thread(target=beat, daemon=True).start()
    return is_over
