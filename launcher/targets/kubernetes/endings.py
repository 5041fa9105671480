"""What ended pods leave, in the run folder: controllers delete pods, and what they said with them.

Outcomes of the agents, which stand in the pods' statuses, and the times of what happened to pods.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, name_exit_code
from launcher.contract.reasons import NodeState
from launcher.runs.folder import POD_LEDGER, POD_SOURCE, RunFolder, make_folders, write_atomically
from launcher.targets.kubernetes.logs import LogSource
from launcher.targets.kubernetes.output import POD_FILE, Incarnations
from launcher.targets.kubernetes.pod_states import Ending, PodView, parse_outcome, seconds_of

AGENT_SAYS = "[agent] "
NOT_NEWS = f"{AGENT_SAYS}health: "
ORDINARY_ENDS = ("", "Error", "Completed")
"""Kubernetes' words for an end that add nothing to its exit code."""


class PodEndings:
    """Saves what is new about a run's pods each time it is asked. Idempotent over processes."""

    def __init__(self, run: RunFolder, incarnations: Incarnations, clock: Clock) -> None:
        self._run, self._incarnations, self._clock = run, incarnations, clock
        self._outcomes: set[tuple[str, int]] = set()
        self._done: set[str] = set()
        """Uids of pods that are gone and fully recorded."""
        self._path = run.path / protocol.LEDGER_DIR / POD_LEDGER
        self._told: set[str] = _read_keys(run)
        self._lock = threading.Lock()

    def save(self, pods: Iterable[PodView], there: Iterable[PodView]) -> None:
        """``pods`` are all that were seen, oldest first; ``there`` those that are not gone."""
        left = {pod.uid for pod in there}
        for pod in pods:
            index = pod.node_index
            if index is None or pod.uid in self._done:
                continue
            number = self._incarnations.upcoming(index)
            for restarts, ending in _containers(pod):
                number = self._incarnations.number(index, pod.uid, restarts)
                self._save_container(pod, index, restarts, number, ending)
            self._tell(_moments(pod), index, number)
            if pod.uid not in left:
                gone = (f"{pod.uid}/gone", self._clock.wall(), f"pod {pod.name} is gone")
                self._tell([gone], index, number)
                if pod.state is NodeState.EXITED:
                    self._done.add(pod.uid)

    def hear(self, source: LogSource, index: int, number: int, stamp: str, text: str) -> None:
        """A line of a container's log: of the agent's own words there is no other record here."""
        if text.startswith(AGENT_SAYS) and not text.startswith(NOT_NEWS):
            key = f"{source.uid}/{source.restarts}/{stamp}/{text}"
            said = text.removeprefix(AGENT_SAYS)
            self._tell([(key, seconds_of(stamp), f"agent: {said}")], index, number)

    def _save_container(
        self, pod: PodView, index: int, restarts: int, number: int, ending: Ending | None
    ) -> None:
        """Which container it was, and what its agent said in the termination message."""
        folder = self._run.node_dir(index, number)
        if not (folder / POD_FILE).exists():
            source = LogSource(
                pod=pod.name, uid=pod.uid, container=pod.container, restarts=restarts
            )
            # A full disk here is no reason to leave a run alone that goes on there.
            with contextlib.suppress(OSError, DiskFullError):
                make_folders((str(folder),))
                write_atomically(folder / POD_FILE, json.dumps(asdict(source)))
        outcome = parse_outcome(ending.message) if ending else None
        if outcome is None or (pod.uid, restarts) in self._outcomes:
            return
        self._outcomes.add((pod.uid, restarts))
        with contextlib.suppress(OSError, DiskFullError):
            write_atomically(folder / protocol.OUTCOME_FILE, json.dumps(outcome, indent=2))

    def _tell(self, moments: Iterable[tuple[str, float, str]], index: int, number: int) -> None:
        with self._lock:
            for key, at, text in moments:
                if key in self._told:
                    continue
                self._told.add(key)
                event = {
                    "schema": protocol.LEDGER_SCHEMA,
                    "source": POD_SOURCE,
                    "node_index": index,
                    "incarnation": number,
                    "event": POD_SOURCE,
                    "at": at,
                    "monotonic_s": at,
                    "key": key,
                    "text": text,
                }
                with contextlib.suppress(OSError, DiskFullError):
                    make_folders((str(self._path.parent),))
                    with self._path.open("a") as file:
                        file.write(json.dumps(event) + "\n")


def _containers(pod: PodView) -> Iterator[tuple[int, Ending | None]]:
    """Containers of a pod that were started or tried, with their endings, older first."""
    if pod.has_started:
        if pod.restarts:
            yield pod.restarts - 1, pod.ending_before
        yield pod.restarts, pod.ending


def _moments(pod: PodView) -> Iterator[tuple[str, float, str]]:
    """What happened to a pod and when: a key, seconds since the epoch, words."""
    yield f"{pod.uid}/made", seconds_of(pod.created), f"pod {pod.name} made"
    if pod.scheduled:
        placed = f"pod {pod.name} placed on {pod.machine or 'a node'}"
        yield f"{pod.uid}/placed", seconds_of(pod.scheduled), placed
    for restarts, ending in _containers(pod):
        key = f"{pod.uid}/{restarts}"
        started = ending.started if ending else (pod.started if restarts == pod.restarts else "")
        if started:
            yield f"{key}/started", seconds_of(started), f"container of {pod.name} started"
        if ending is not None:
            word = "" if ending.word in ORDINARY_ENDS else f" ({ending.word})"
            at = seconds_of(ending.finished) or seconds_of(pod.created)
            code = name_exit_code(ending.exit_code)
            yield f"{key}/ended", at, f"container of {pod.name} ended: exit code {code}{word}"


def _read_keys(run: RunFolder) -> set[str]:
    """What is told already, by this process or another."""
    found: set[str] = set()
    path = run.path / protocol.LEDGER_DIR / POD_LEDGER
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found.add(json.loads(line)["key"])
    return found
