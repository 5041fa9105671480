"""What is told of a run's pods while it goes on: what changed, why pods are missing or do not
start, and when to end a run whose pods cannot start."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.contract.causes import Cause, NodeState
from launcher.contract.errors import ExitCode, TargetError, name_exit_code
from launcher.contract.waits import RARE_LOOK_S
from launcher.follow.endings import Part
from launcher.targets.kubernetes.api.refusals import (
    FORBIDDEN,
    OPERATORS,
    ApiError,
    find_fix,
    is_for_good,
)
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pods.states import (
    BAD_ENDS,
    GOOD_ENDS,
    START_FAILURES,
    WORDS,
    ContainerEnd,
    Object,
    PodView,
    describe_trouble,
    event_time,
    find_missing_claim,
    message_of,
    newest_of_each,
    seconds_of,
    section,
    true_conditions,
)
from launcher.targets.kubernetes.render.kinds import QUEUE_LABEL, VOLCANO

if TYPE_CHECKING:
    from launcher.targets.kubernetes.cluster_job import ClusterJob

LIMIT_KEY = "kubernetes.start_limit_s"
NOT_MADE = -1
"""Stands in the place of a node's index for nodes whose pods are refused."""
Start = tuple[str, int]
"""A container: its pod's uid and the number of restarts before it."""
POD_GROUP = ("scheduling.volcano.sh/v1beta1", "PodGroup")
MISSING_S = 3.0
"""How long pods may be missing before the job's events are looked at."""
_VARYING = re.compile(r'"[^"]*"|[0-9a-f]{8,}|\d+')


def same_words(text: str) -> str:
    """A message without its names and numbers, which differ between two messages of a kind."""
    return _VARYING.sub("#", text)


def _failed_starts(pods: Iterable[PodView]) -> Iterator[tuple[Start, PodView, ContainerEnd]]:
    """Containers whose program could not be started."""
    for pod in pods:
        for restarts, ending in ((pod.restarts, pod.ending), (pod.restarts - 1, pod.ending_before)):
            if ending is not None and ending.word in START_FAILURES:
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

    def describe_changes(self, pods: tuple[PodView, ...]) -> Iterator[str]:
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

    def describe_losses(
        self,
        pods: tuple[PodView, ...],
        there: tuple[PodView, ...],
        wanted: frozenset[int],
        min_nodes: int,
    ) -> Iterator[str]:
        """Lines about nodes of ``wanted`` whose pods were lost while they ran.

        ``pods`` are all of the run's, ``there`` the ones that are not gone.
        """
        left = {pod.uid for pod in there}
        well = (pod for pod in there if pod.state is NodeState.RUNNING and pod.trouble is None)
        live = {pod.node_index for pod in well}
        others = "go on" if len(live) >= min_nodes else "wait for its next pod"
        for pod in pods:
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

    def find(self, pods: Sequence[PodView], now: float, refused: str = "") -> Part | None:
        """What cannot start, for which the run must end; None while it may go on.

        ``pods`` are all of the run's, also gone ones; ``refused`` says why others cannot be made,
        empty if they can; ``now`` is a steady clock's time.
        """
        newest = newest_of_each(pods)
        if sum(pod.state is NodeState.RUNNING for pod in newest.values()) >= self._min_nodes:
            self._kept_since.clear()
            self._forgiven |= {start for start, _, _ in _failed_starts(pods)}
            return None
        return self._find_certain(pods) or self._find_lasting(newest, refused, now)

    def _find_certain(self, pods: Sequence[PodView]) -> Part | None:
        alike: defaultdict[str, list[tuple[PodView, ContainerEnd]]] = defaultdict(list)
        for start, pod, ending in _failed_starts(pods):
            if start not in self._forgiven:
                alike[same_words(ending.message)].append((pod, ending))
        certain = next((starts for starts in alike.values() if len(starts) > 1), None)
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
                words = f"{what}; it lasted {self._limit_s} s ({LIMIT_KEY})"
                cause = waiting[index].cause if index in waiting else Cause.NOT_ALLOWED
                return Part(words=words, cause=cause)
        return None


# -- why pods are missing, from the job's conditions and events ------------------------------------


class MissingPods:
    """Finds out why pods are missing, or silently do not start, once that has lasted a while.

    It reports each answer once.
    """

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        self._limit_s = PodSettings.of(job.plan).start_limit_s
        self._since: float | None = None
        self._next_at = float("-inf")
        self._reported: set[str] = set()
        self._any_pod = False
        self.refused = ""
        """Why the server makes no pod of a missing node, ever; empty if nothing says so."""

    def find_reasons(
        self, pods: tuple[PodView, ...], wanted: frozenset[int], now: float
    ) -> Iterator[str]:
        """New lines about nodes of ``wanted`` that do not start; ``now`` is any steady clock's."""
        present = {pod.node_index for pod in pods}
        self._any_pod = self._any_pod or bool(present)
        # The kubelet may wait for a volume or a sandbox: only events say so. One pod is enough.
        silent = [p for p in pods if p.state is NodeState.PENDING and not p.trouble][:1]
        if wanted <= present and not silent:
            self._since, self.refused = None, ""
            return
        if self._since is None:
            self._since, self._next_at = now, now + MISSING_S
        if now < self._next_at:
            return
        self._next_at = now + RARE_LOOK_S
        with contextlib.suppress(TargetError):
            item = self._job.read_object()
            names = [pod.name for pod in silent]
            for line in read_reasons(self._job, item, names):
                is_final = not wanted <= present and is_for_good(line)
                self.refused = line if is_final else self.refused
                if same_words(line) not in self._reported:
                    self._reported.add(same_words(line))
                    yield line + (tell_limit(self._limit_s) if is_final else "")
            if not self._reported and now - self._since >= RARE_LOOK_S:
                waits = silent[0].waits if silent else ""
                if waits or not self._any_pod:
                    self._reported.add("")
                    yield waits or describe_silence(self._job, item)


def read_reasons(job: ClusterJob, item: Object | None, pods: Iterable[str] = ()) -> tuple[str, ...]:
    """What the job's conditions, its events and those of ``pods`` say, each in a line.

    ``item`` is the job's object. Empty if it is gone. If no condition says anything and the user
    may not list events, the only line says that. Raises ``TargetError``.
    """
    if item is None:
        return ()
    cluster, kind = job.cluster, PodSettings.of(job.plan).kind
    events: list[Object] = []
    refused: tuple[str, ...] = ()
    name = section(item, "metadata").get("name")
    # The Job that a JobSet or TrainJob makes carries the events about its pods.
    names = (name, f"{name}-node-0") if kind in ("jobset", "trainjob") else (name,)
    try:
        for about in (*names, *pods):
            chosen = f"involvedObject.name={about}"
            events += cluster.list_objects("v1", "Event", "", fields=chosen)["items"]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        refused = (f"events may say why, but you may not list them: {error.hint}",)
    way = f"resume it: {job.render_resuming()}"
    if QUEUE_LABEL in section(item, "metadata", "labels"):
        way = f"{cluster.kubectl} get workloads -n {cluster.namespace} tells what it waits for"
    return tell_reasons(item, events, cluster.namespace, cluster.kubectl, way) or refused


def tell_reasons(
    job: Object,
    events: Iterable[Object],
    namespace: str,
    kubectl: str = "kubectl",
    way: str = "",
) -> tuple[str, ...]:
    """What keeps the job's pods from being made; each message once, the latest last. Pure.

    ``way`` is how a suspended job goes on.
    """
    lines = (*_conditions(job, way), *_warnings(job, events, namespace, kubectl))
    return tuple({same_words(line): line for line in lines}.values())


def describe_silence(job: ClusterJob, item: Object | None) -> str:
    """A line for a job without pods, if nothing says why."""
    look, called = job.render_looking(), job.called
    if item is not None and not item.get("status"):
        # No controller has written anything into it.
        controller = OPERATORS.get(item["kind"], "kube-controller-manager")
        return (
            f"no controller has taken up {called}: is {controller} running? "
            f"{job.cluster.kubectl} get pods -A; {look}"
        )
    with contextlib.suppress(TargetError):
        if (group := _read_group(job)) is not None:
            phase = section(group, "status").get("phase") or "Pending"
            queue = section(group, "spec").get("queue") or "default"
            name, kubectl = job.plan.job_name, job.cluster.kubectl
            show = f"{kubectl} describe podgroup {name} -n {job.cluster.namespace}"
            return f"Volcano holds PodGroup {name} in queue {queue}: {phase}; {show}"
    return f"{called} has no pod, and no event says why; {look}"


def _read_group(job: ClusterJob) -> Object | None:
    """Volcano's PodGroup of a job that it schedules, whoever has made it."""
    if PodSettings.of(job.plan).gang != VOLCANO:
        return None
    chosen = f"metadata.name={job.plan.job_name}"
    groups = job.cluster.list_objects(*POD_GROUP, "", fields=chosen)["items"]
    return next(iter(groups), None)


def _conditions(job: Object, way: str) -> Iterator[str]:
    for kind, condition in true_conditions(job).items():
        if kind not in (*GOOD_ENDS, *BAD_ENDS, "Created", "Running"):
            message = condition.get("message") or condition.get("reason") or ""
            called = f"{job.get('kind')} {section(job, 'metadata').get('name')}"
            fix = f"; {way}" if kind == "Suspended" and way else ""
            yield f"{called}: {kind}{f': {message}' if message else ''}{fix}"


def _warnings(job: Object, events: Iterable[Object], namespace: str, kubectl: str) -> Iterator[str]:
    made_at = seconds_of(section(job, "metadata").get("creationTimestamp") or "")
    for event in sorted(events, key=event_time):
        # Events of an earlier job of the same name may still be there. Times are whole seconds.
        if event.get("type") == "Warning" and event_time(event) >= made_at - 1:
            about = section(event, "involvedObject")
            kind, name = str(about.get("kind")), about.get("name")
            message = message_of(event)
            look = f"{kubectl} describe {kind.lower()} {name} -n {namespace}"
            fix = find_fix(message, namespace, kubectl) or look
            yield f"{kind} {name}: {event.get('reason')}: {message}; {fix}"
