"""The pods' output in the run folder: a file for each container that a node has had.

One process at a time writes there, whichever comes first; the others read the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError
from launcher.contract.reasons import NodeState
from launcher.follow.target import NodeObservation
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.kubernetes.api import ApiError, Cluster
from launcher.targets.kubernetes.logs import Fate, LogFollower, LogSource
from launcher.targets.kubernetes.pod_states import (
    PodView,
    Trouble,
    describe_trouble,
    newest_of_each,
)

POD_FILE = "pod.json"
"""In a node's folder: which container's output lies there."""
LOCK_FILE = "output.lock"
Find = Callable[[str], PodView | None]
"""The newest view of a pod by its uid; None where it is gone."""
Hear = Callable[[LogSource, int, int, str, str], None]
"""Takes a line as it comes: its source, node index, incarnation, time and text."""


class Incarnations:
    """Numbers the containers of each node, also those that earlier launchers have seen."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._seen: dict[int, list[tuple[str, int]]] = {}

    def number(self, index: int, uid: str, restarts: int) -> int:
        """How many containers the node had before this one."""
        if index not in self._seen:
            self._seen[index] = _read_incarnations(self._run, index)
        seen = self._seen[index]
        if (uid, restarts) not in seen:
            seen.append((uid, restarts))
        return seen.index((uid, restarts))

    def upcoming(self, index: int) -> int:
        """The number that the next container gets."""
        if index not in self._seen:
            self._seen[index] = _read_incarnations(self._run, index)
        return len(self._seen[index])

    def newest(self, index: int) -> int:
        """The number of the last one seen."""
        return max(len(self._seen.get(index, ())) - 1, 0)


def _read_incarnations(run: RunFolder, index: int) -> list[tuple[str, int]]:
    """The containers whose output is in the run folder, in their order."""
    found: list[tuple[str, int]] = []
    while (path := run.node_dir(index, len(found)) / POD_FILE).is_file():
        told = json.loads(path.read_text())
        found.append((told["uid"], told["restarts"]))
    return found


def observe_node(
    index: int, pods: tuple[PodView, ...], incarnations: Incarnations
) -> NodeObservation:
    """One node by its newest pod; ``pods`` are all that are there, oldest first."""
    newest = newest_of_each(pods).get(index)
    if newest is None:
        return NodeObservation(node_index=index, incarnation=0, state=NodeState.MISSING)
    for pod in pods:
        if pod.node_index == index and pod.has_started:
            incarnations.number(index, pod.uid, pod.restarts)
    return NodeObservation(
        node_index=index,
        incarnation=incarnations.number(index, newest.uid, newest.restarts),
        state=newest.state,
        exit_code=newest.exit_code,
        out_of_memory=newest.trouble is Trouble.OUT_OF_MEMORY,
        detail=describe_trouble(newest) if newest.trouble else "",
    )


class PodOutput:
    """Brings the logs of a run's pods into its folder."""

    def __init__(
        self,
        cluster: Cluster,
        run: RunFolder,
        incarnations: Incarnations,
        find: Find,
        hear: Hear,
    ) -> None:
        self._cluster, self._run, self._incarnations = cluster, run, incarnations
        self._find, self._hear = find, hear
        self.refusal: ApiError | None = None
        """Why this user gets no logs; None while the server gives them."""
        self._followers: dict[LogSource, LogFollower] = {}
        self._lock: IO[bytes] | None = None

    def follow(self, pods: tuple[PodView, ...]) -> None:
        """Starts to follow every container that was started since the last call.

        Nothing, while another process writes this run's output.
        """
        if self.take():
            for source, index in _sources(pods):
                if source not in self._followers:
                    self._start(source, index, once=False)
            self._look_for_refusals()

    def read(self, pods: tuple[PodView, ...], limit_s: float, clock: Clock) -> None:
        """Brings what the containers have written by now; nothing, while another process does."""
        if self._followers or not self.take():
            return
        for source, index in _sources(pods):
            self._start(source, index, once=True)
        self._finish(list(self._followers.values()), limit_s, clock)
        self._look_for_refusals()
        self._followers.clear()
        self.release()

    def finish(self, limit_s: float, clock: Clock) -> None:
        """Waits for the last lines of containers that have ended."""
        ended = [f for s, f in self._followers.items() if self._fate(s).is_over]
        self._finish(ended, limit_s, clock)

    def _look_for_refusals(self) -> None:
        refusals = (follower.refusal for follower in self._followers.values())
        self.refusal = next((found for found in refusals if found), None)

    def find_losses(self) -> tuple[str, ...]:
        """A line for each container whose log the cluster no longer has."""
        lost = ((s.pod, f.loss) for s, f in self._followers.items() if f.loss)
        return tuple(f"the rest of the log of {pod} is lost: {said}" for pod, said in lost)

    def release(self) -> None:
        """Lets other processes write."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _finish(self, followers: list[LogFollower], limit_s: float, clock: Clock) -> None:
        deadline = clock.monotonic() + limit_s
        for follower in followers:
            follower.finish(max(0.1, deadline - clock.monotonic()))

    def _start(self, source: LogSource, index: int, *, once: bool) -> None:
        incarnation = self._incarnations.number(index, source.uid, source.restarts)
        console = self._run.console(index, incarnation)
        # On a full disk: at a later look.
        with contextlib.suppress(OSError, DiskFullError):
            make_folders((str(console.parent),))
            write_atomically(console.with_name(POD_FILE), json.dumps(asdict(source)))
            self._follow(source, index, incarnation, console, once=once)

    def _follow(
        self, source: LogSource, index: int, incarnation: int, console: Path, *, once: bool
    ) -> None:
        write = ConsoleWriter(console)

        def take(line: bytes) -> None:
            write(line)
            text = line.decode(errors="replace").rstrip("\n")
            self._hear(source, index, incarnation, follower.at, text)

        follower = LogFollower(self._cluster, source, lambda: self._fate(source), take, once=once)
        self._followers[source] = follower
        follower.start()

    def _fate(self, source: LogSource) -> Fate:
        pod = self._find(source.uid)
        later = 0 if pod is None else pod.restarts - source.restarts
        ended = pod is None or later > 0 or pod.state is NodeState.EXITED
        return Fate(is_over=ended, was_restarted=later == 1, is_forgotten=later > 1)

    def take(self) -> bool:
        """Whether this process writes, from now on until ``release`` or its end."""
        if self._lock is None:
            make_folders((str(self._run.path),))
            lock = (self._run.path / LOCK_FILE).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True


def _sources(pods: tuple[PodView, ...]) -> list[tuple[LogSource, int]]:
    """The logs that the cluster has, each with its node's index."""
    return [
        (LogSource(pod=pod.name, uid=pod.uid, container=pod.container, restarts=restarts), index)
        for pod in pods
        if pod.has_started and (index := pod.node_index) is not None
        # A container that was restarted before it was seen has left its log as well.
        for restarts in range(max(pod.restarts - 1, 0), pod.restarts + 1)
    ]


class ConsoleWriter:
    """Appends the lines of a log to a file that may hold a part of it from an earlier reader.

    Lines that the file has are left out, also where the cluster has thrown away a log's beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None
        self._is_aligned = False
        with contextlib.suppress(OSError):
            self._held = path.open("rb")

    def __call__(self, line: bytes) -> None:
        """Takes the next whole line of the log, from its beginning on."""
        if self._held is not None and self._is_held(line):
            return
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            file.write(line)

    def _is_held(self, line: bytes) -> bool:
        assert self._held is not None, "looked at by the caller"
        if not self._is_aligned:
            self._is_aligned = True
            if line in iter(self._held.readline, b""):
                return True
        elif self._held.readline() == line:
            return True
        self._held.close()
        self._held = None
        return False
