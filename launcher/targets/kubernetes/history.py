"""Saves when a run's pods were made, placed, started and lost, for its report; controllers delete
the pods.

Controllers delete pods, and with them what their statuses say.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, name_exit_code
from launcher.contract.hold import READY_SAYS
from launcher.contract.reports.look import STANDS
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.runs.ledger import read_moments, tell_moment
from launcher.targets.kubernetes.logs import LogSource, containers_of
from launcher.targets.kubernetes.pod_states import ContainerEnd, PodView, seconds_of

POD_FILE = "pod.json"
"""In a node's folder: which container's output lies there."""
AGENT_SAYS = "[agent] "


class Incarnations:
    """Numbers the containers of each node, also those that earlier launchers have seen."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._seen: dict[int, list[tuple[str, int]]] = {}

    def _of(self, index: int) -> list[tuple[str, int]]:
        """The containers of a node in their order: those with output in the run folder first."""
        if index not in self._seen:
            seen = self._seen[index] = []
            while (path := self._run.node_dir(index, len(seen)) / POD_FILE).is_file():
                record = json.loads(path.read_text())
                seen.append((record["uid"], record["restarts"]))
        return self._seen[index]

    def number(self, index: int, uid: str, restarts: int) -> int:
        """How many containers the node had before this one."""
        seen = self._of(index)
        if (uid, restarts) not in seen:
            seen.append((uid, restarts))
        return seen.index((uid, restarts))

    def upcoming(self, index: int) -> int:
        """The number that the next container gets."""
        return len(self._of(index))

    def newest(self, index: int) -> int:
        """The number of the last container seen."""
        return max(len(self._seen.get(index, ())) - 1, 0)


class PodRecorder:
    """Saves what is new about a run's pods, also after another process did."""

    def __init__(self, run: RunFolder, incarnations: Incarnations, clock: Clock) -> None:
        self._run, self._incarnations, self._clock = run, incarnations, clock
        self._done: set[str] = set()
        """Uids of pods that are gone and fully recorded."""
        self._told = {str(event.values.get("key")) for event in read_moments(run)}
        self._lock = threading.Lock()

    def save(self, pods: Iterable[PodView], there: Iterable[PodView]) -> None:
        """``pods`` are all that were seen, oldest first; ``there`` are the ones not gone."""
        left = {pod.uid for pod in there}
        for pod in pods:
            index = pod.node_index
            if index is None or pod.uid in self._done:
                continue
            first = number = self._incarnations.upcoming(index)
            for n, (source, ending) in enumerate(containers_of(pod)):
                number = self._incarnations.number(index, pod.uid, source.restarts)
                first = number if n == 0 else first
                self._save_container(source, self._run.node_dir(index, number), ending)
                self._record(_container_moments(pod, source, ending), index, number)
            self._record(_moments(pod, self._clock.wall()), index, first)
            if pod.uid not in left:
                gone = (f"{pod.uid}/gone", self._clock.wall(), f"pod {pod.name} is gone")
                self._record([gone], index, number)
                if pod.state is NodeState.EXITED:
                    self._done.add(pod.uid)

    def hear(self, source: LogSource, index: int, number: int, stamp: str, text: str) -> None:
        """Takes a line of a container's log. Records what the agent says: nothing else does."""
        line = text.removeprefix(AGENT_SAYS)
        if line != text and not line.startswith(("health: ", STANDS)):
            key = f"{source.uid}/{source.restarts}/{stamp}/{text}"
            self._record([(key, seconds_of(stamp), f"agent: {line}")], index, number)
            if line.startswith(READY_SAYS):
                path = self._run.node_dir(index, number) / protocol.HOLD_READY
                with contextlib.suppress(OSError, DiskFullError):
                    write_atomically(path, line.removeprefix(READY_SAYS))

    def _save_container(self, source: LogSource, folder: Path, ending: ContainerEnd | None) -> None:
        """Saves which container's output lies in a node's folder, and its outcome there."""
        # A full disk here must not stop following a run that goes on there.
        with contextlib.suppress(OSError, DiskFullError):
            if not (folder / POD_FILE).exists():
                make_folders((str(folder),))
                write_atomically(folder / POD_FILE, json.dumps(asdict(source)))
            outcome = folder / protocol.OUTCOME_FILE
            if ending and not outcome.exists() and ending.outcome:
                write_atomically(outcome, ending.message)

    def _record(self, moments: Iterable[tuple[str, float, str]], index: int, number: int) -> None:
        with self._lock:
            for key, at, text in moments:
                if key in self._told:
                    continue
                self._told.add(key)
                tell_moment(self._run, index, number, at=at, text=text, key=key)


def _moments(pod: PodView, now: float) -> Iterator[tuple[str, float, str]]:
    """What happened to a pod and when: a key, seconds since the epoch, words."""
    if pod.trouble and pod.state is NodeState.PENDING and pod.cause is not Cause.NO_ROOM:
        # Kubernetes gives it no time. That there is no room is told by the conditions below.
        text = f"pod {pod.name} waits: {pod.trouble.word}: {pod.message}"
        yield f"{pod.uid}/{pod.restarts}/{pod.trouble.word}", now, text
    yield f"{pod.uid}/made", seconds_of(pod.created), f"pod {pod.name} made"
    for stamp, words in pod.conditions:
        yield f"{pod.uid}/{words}", seconds_of(stamp), f"pod {pod.name} {words}"
    if pod.ending is not None and not pod.has_started:
        stamp, word = pod.ending.finished, pod.ending.word
        text = f"pod {pod.name} could not be prepared: {word}"
        yield f"{pod.uid}/{stamp}/unprepared", seconds_of(stamp or pod.created), text


def _container_moments(
    pod: PodView, source: LogSource, ending: ContainerEnd | None
) -> Iterator[tuple[str, float, str]]:
    """As ``_moments``, for one container of the pod."""
    key = f"{pod.uid}/{source.restarts}"
    present = pod.started if source.restarts == pod.restarts else ""
    started = ending.started if ending else present
    if started:
        yield f"{key}/started", seconds_of(started), f"container of {pod.name} started"
    if ending is not None:
        # These two add nothing to the exit code.
        word = "" if ending.word in ("Error", "Completed") else ending.word
        if outcome := ending.outcome:
            word = outcome.cause.value
            if first := outcome.first:
                words = f"rank {first.rank} ended: {first.exception or first.cause}"
                yield f"{key}/first", first.failed_at, words
        why = f" ({word})" if word else ""
        at = seconds_of(ending.finished) or seconds_of(pod.created)
        code = name_exit_code(ending.exit_code)
        yield f"{key}/ended", at, f"container of {pod.name} ended: exit code {code}{why}"
