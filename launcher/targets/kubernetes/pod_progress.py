"""Words for the progress of a run's pods, and when to end a run whose pods cannot start. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from launcher.contract.causes import Cause, NodeState
from launcher.contract.errors import ExitCode, name_exit_code
from launcher.follow.endings import Part
from launcher.targets.kubernetes.pod_states import (
    NOT_STARTED,
    WORDS,
    ContainerEnd,
    PodView,
    describe_trouble,
    find_missing_claim,
    newest_of_each,
)

LIMIT_KEY = "kubernetes.start_limit_s"
NOT_MADE = -1
"""Stands in the place of a node's index for nodes whose pods are refused."""
Start = tuple[str, int]
"""A container: its pod's uid and the number of restarts before it."""
_VARYING = re.compile(r'"[^"]*"|[0-9a-f]{8,}|\d+')


def same_words(text: str) -> str:
    """A message without its names and numbers, which differ between two messages of a kind."""
    return _VARYING.sub("#", text)


def _failed_starts(pods: Iterable[PodView]) -> Iterator[tuple[Start, PodView, ContainerEnd]]:
    """Containers whose program could not be started."""
    for pod in pods:
        for restarts, ending in ((pod.restarts, pod.ending), (pod.restarts - 1, pod.ending_before)):
            if ending is not None and ending.word in NOT_STARTED:
                yield (pod.uid, restarts), pod, ending


def tell_limit(limit_s: int) -> str:
    """What to add to a trouble that ends the run if it lasts; 0: it never does."""
    return f"; the run ends if this lasts {limit_s} s ({LIMIT_KEY})" if limit_s else ""


def is_lasting(pod: PodView) -> bool:
    """Whether a pod waits for something that only a person can change."""
    lasts = pod.cause in (Cause.IMAGE_PULL, Cause.CONTAINER_START)
    return pod.state is NodeState.PENDING and (lasts or find_missing_claim(pod) is not None)


class PodProgress:
    """Says what changed about the pods, each trouble of a pod once.

    A pod with a lasting trouble ends the run after ``limit_s``; 0: never. ``kubectl`` is the
    command to type for the pods' namespace.
    """

    def __init__(self, limit_s: int, kubectl: str = "kubectl") -> None:
        self._limit_s, self._kubectl = limit_s, kubectl
        self._words: dict[str, str] = {}
        self._lost: set[str] = set()
        """Uids of pods whose loss was reported."""
        self._troubles: set[tuple[str, str, int]] = set()

    def tell(self, pods: tuple[PodView, ...]) -> Iterator[str]:
        """Lines about what is new since the last call."""
        for pod in pods:
            if pod.node_index is None:
                continue
            if pod.trouble is not None:
                # Without the message, which changes: an image that cannot be pulled has two
                # reasons in turn, with the seconds until the next try.
                key = (pod.uid, pod.trouble.word, pod.restarts)
                if key not in self._troubles:
                    self._troubles.add(key)
                    limit = tell_limit(self._limit_s) if is_lasting(pod) else ""
                    yield describe_trouble(pod, self._kubectl) + limit
            elif self._words.get(pod.uid) != (word := _word(pod)):
                self._words[pod.uid] = word
                yield word

    def tell_losses(
        self,
        seen: tuple[PodView, ...],
        there: tuple[PodView, ...],
        wanted: frozenset[int],
        min_nodes: int,
    ) -> Iterator[str]:
        """Lines about nodes of ``wanted`` whose pods were lost while they ran.

        ``seen`` are all pods, ``there`` the ones that are not gone.
        """
        left = {pod.uid for pod in there}
        well = (pod for pod in there if pod.state is NodeState.RUNNING and pod.trouble is None)
        live = {pod.node_index for pod in well}
        others = "go on" if len(live) >= min_nodes else "wait for its next pod"
        for pod in seen:
            is_gone = pod.uid not in left and pod.state is not NodeState.EXITED
            is_away = pod.cause is Cause.PREEMPTED
            is_lost = is_gone or is_away or pod.exit_code == ExitCode.KILLED
            is_new = pod.node_index in wanted and pod.has_started and pod.uid not in self._lost
            if is_new and is_lost:
                self._lost.add(pod.uid)
                others_do = f"; the others {others}" if len(wanted) > 1 else ""
                yield f"node {pod.node_index} is lost with its pod {pod.name}{others_do}"


def _word(pod: PodView) -> str:
    ended = "" if pod.exit_code is None else f" with {name_exit_code(pod.exit_code)}"
    again = f" (restart {pod.restarts})" if pod.restarts else ""
    begins = f": its init container {pod.preparing} runs" if pod.preparing else ""
    states = {NodeState.PENDING: f"is starting{begins}", NodeState.RUNNING: "runs"}
    return f"{pod.name} {states.get(pod.state, 'ended')}{ended}{again}"


class StartLimit:
    """Finds what ends a run that has too few running nodes, and pods that cannot start.

    A pod may wait ``limit_s`` for a person to help; 0: for ever.
    """

    def __init__(self, limit_s: int, min_nodes: int, kubectl: str = "kubectl") -> None:
        self._limit_s, self._min_nodes, self._kubectl = limit_s, min_nodes, kubectl
        self._kept_since: dict[int, float] = {}
        self._forgiven: set[Start] = set()
        """Starts that failed before enough nodes ran."""

    def find(self, pods: Iterable[PodView], now: float, refused: str = "") -> Part | None:
        """What cannot start, for which the run must end; None while it may go on.

        ``pods`` are all that were seen, also gone ones; ``refused`` says why others cannot be made,
        empty if they can; ``now`` is a steady clock's time.
        """
        seen = tuple(pods)
        newest = newest_of_each(seen)
        if sum(pod.state is NodeState.RUNNING for pod in newest.values()) >= self._min_nodes:
            self._kept_since.clear()
            self._forgiven |= {start for start, _, _ in _failed_starts(seen)}
            return None
        return self._find_certain(seen) or self._find_lasting(newest, refused, now)

    def _find_certain(self, seen: tuple[PodView, ...]) -> Part | None:
        alike: defaultdict[str, list[tuple[PodView, ContainerEnd]]] = defaultdict(list)
        for start, pod, ending in _failed_starts(seen):
            if start not in self._forgiven:
                alike[same_words(ending.message)].append((pod, ending))
        certain = next((pods for pods in alike.values() if len(pods) > 1), None)
        if certain is None:
            return None
        pod, ending = certain[-1]
        what = f"{pod.name}: {ending.word}, {len(certain)} times: {ending.message}"
        return Part(words=f"{what}; {WORDS['StartError'].fix}", cause=WORDS["StartError"].cause)

    def _find_lasting(self, newest: dict[int, PodView], refused: str, now: float) -> Part | None:
        waiting = {index: pod for index, pod in sorted(newest.items()) if is_lasting(pod)}
        troubles = {index: describe_trouble(pod, self._kubectl) for index, pod in waiting.items()}
        troubles |= {NOT_MADE: refused} if refused else {}
        self._kept_since = {index: self._kept_since.get(index, now) for index in troubles}
        for index, what in troubles.items():
            if self._limit_s and now - self._kept_since[index] >= self._limit_s:
                told_s = f"{what}; it lasted {self._limit_s} s ({LIMIT_KEY})"
                cause = waiting[index].cause if index in waiting else Cause.NOT_ALLOWED
                return Part(words=told_s, cause=cause)
        return None
