"""Follows logs of pods: brings each line once, through restarts and broken connections."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from launcher.contract.errors import TargetError
from launcher.contract.waits import RETRY_S
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.api.kubeconfig import UNAUTHORIZED
from launcher.targets.kubernetes.api.refusals import FORBIDDEN, ApiError
from launcher.targets.kubernetes.pods.states import ContainerEnd, PodView

NO_LOG = (400, 404)
"""What a server answers for a log that is not there yet, or not any more."""
REFUSED = (UNAUTHORIZED, FORBIDDEN)
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
"""The time (RFC 3339) that begins every line that a container wrote."""


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """One container's log, in the pod called ``pod``; ``restarts`` counts the containers before."""

    pod: str
    uid: str
    container: str
    restarts: int


def containers_of(pod: PodView) -> list[tuple[LogSource, ContainerEnd | None]]:
    """The containers of a pod that were started or tried, with their endings, older first.

    Also the container before the latest: its log and ending are still there.
    """
    containers = [(pod.restarts - 1, pod.ending_before), (pod.restarts, pod.ending)]
    return [
        (LogSource(pod=pod.name, uid=pod.uid, container=pod.container, restarts=restarts), ending)
        for restarts, ending in containers
        if restarts >= 0 and pod.has_started
    ]


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What is known of a source by now. ``is_over``: it writes no more; ``was_restarted``: its log
    is the previous one of the same pod; ``is_forgotten``: the cluster has thrown its log away."""

    is_over: bool
    was_restarted: bool
    is_forgotten: bool = False


class Cursor:
    """A reader's position in a log, by the server's timestamps. Drops lines seen before.

    Several lines may have one timestamp; a log asked for again begins at a whole second.
    """

    def __init__(self) -> None:
        self._last = ""
        self._at_last = 0
        """How many lines have the last timestamp."""
        self._to_skip = 0

    @property
    def last(self) -> str:
        """The time of the last line, RFC 3339 in UTC; empty before the first."""
        return self._last

    def since(self) -> dict[str, str]:
        """The query that asks for the rest."""
        self._to_skip = self._at_last
        return {"sinceTime": f"{self._last[:19]}Z"} if self._last else {}

    def accept(self, line: bytes) -> bytes | None:
        """The text of a line, without its timestamp; None for a line that was seen before.

        None also for a line that has no timestamp: the server writes it in place of a log that is
        no longer there, such as "unable to retrieve container logs".
        """
        stamp, _, text = line.partition(b" ")
        if (at := _sortable(stamp)) is None or at < self._last:
            return None
        if at == self._last:
            if self._to_skip:
                self._to_skip -= 1
                return None
            self._at_last += 1
        else:
            self._last, self._at_last, self._to_skip = at, 1, 0
        return text


def _sortable(stamp: bytes) -> str | None:
    """RFC 3339 in UTC with all nine digits: servers leave out zeros at the end. None for others."""
    if (match := _STAMP.fullmatch(stamp)) is None:
        return None
    seconds, fraction, zone = (part.decode() for part in match.groups(b""))
    try:
        moment = datetime.fromisoformat(seconds + zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return f"{moment.isoformat()[:19]}.{fraction.ljust(9, '0')}"


class LogFollower:
    """Follows one source in a thread of its own until it is over.

    ``fate`` is asked before each connection; ``write`` gets whole lines, each with its end, in that
    thread. ``once``: only up to the log's present end.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: LogSource,
        fate: Callable[[], Fate],
        write: Callable[[bytes], None],
        *,
        once: bool = False,
    ) -> None:
        self._cluster, self._source, self._once = cluster, source, once
        self._fate, self._write = fate, write
        self._cursor = Cursor()
        self.refusal: ApiError | None = None
        """Why this user gets no log; None while the server gives one."""
        self.loss = ""
        """What the server sent in place of the log; empty if it had the log."""
        self._is_whole = False
        """Whether the log was read to its end: the server may then drop it."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def at(self) -> str:
        """When the last line taken was written."""
        return self._cursor.last

    def start(self) -> None:
        """Does not block."""
        self._thread.start()

    def finish(self, limit_s: float) -> None:
        """Waits until all is written, at most ``limit_s``; the rest is dropped."""
        self._thread.join(limit_s)
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            # Asked before reading: a log that ends meanwhile is read once more.
            fate = self._fate()
            if fate.is_forgotten:
                return
            try:
                for line in self._lines(fate):
                    self._write(line)
                self.refusal = None
            except ApiError as error:
                self.refusal = error if error.status in REFUSED else None
                # While a run is followed, a person may log in again.
                final = (*REFUSED, *NO_LOG) if self._once else (FORBIDDEN, *NO_LOG)
                if (fate.is_over or self._once) and error.status in final:
                    return
            except TargetError:
                self._is_whole = False
            else:
                if fate.is_over or self._once:
                    return
                if self._fate().is_over:
                    continue
            self._stopped.wait(RETRY_S)

    def _lines(self, fate: Fate) -> Iterator[bytes]:
        query = {"container": self._source.container, "timestamps": "true"}
        query |= self._cursor.since()
        query |= {"previous": "true"} if fate.was_restarted else {}
        query |= {} if fate.is_over or self._once else {"follow": "true"}
        rest = b""
        for chunk in self._cluster.read_log(self._source.pod, query):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if (text := self._accept(line)) is not None:
                    yield text + b"\n"
        # A line without its end may be half of one, unless there is no more to come.
        if rest and fate.is_over and (text := self._accept(rest)) is not None:
            yield text + b"\n"
        # The server's words in the place of a log have no end of line.
        self._is_whole = not rest

    def _accept(self, line: bytes) -> bytes | None:
        text = self._cursor.accept(line)
        is_foreign = text is None and line and _sortable(line.partition(b" ")[0]) is None
        if is_foreign and not self._is_whole:
            self.loss = line.decode(errors="replace")
        return text


class ConsoleWriter:
    """Appends the lines of a log to a file that may hold a part of it from an earlier reader.

    Lines that the file has are left out, even if the cluster has thrown away a log's beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None
        self._late: list[bytes] = []
        with contextlib.suppress(OSError):
            self._held = path.open("rb")

    def __call__(self, line: bytes) -> None:
        """Takes the next whole line of the log, from its beginning on."""
        if self._held is not None:
            # The search goes on after the line that was found last.
            if line in self._held:
                return
            self._held.close()
            self._held = None
        self._late.append(line)
        # If the file cannot be opened now, the next line tries again.
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            lines, self._late = self._late, []
            file.writelines(lines)
