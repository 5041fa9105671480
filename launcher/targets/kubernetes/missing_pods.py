"""Why a job has no pods, or pods that do not start, from its conditions and events; how soon one
looks for that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from launcher.contract.causes import NodeState
from launcher.contract.errors import TargetError
from launcher.contract.waits import RARE_LOOK_S
from launcher.targets.kubernetes.api import (
    FORBIDDEN,
    OPERATORS,
    ApiError,
)
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pod_progress import same_words, tell_limit
from launcher.targets.kubernetes.pod_states import (
    BAD_ENDS,
    GOOD_ENDS,
    Object,
    PodView,
    event_time,
    message_of,
    seconds_of,
    section,
    true_conditions,
)
from launcher.targets.kubernetes.refusals import find_fix, is_for_good
from launcher.targets.kubernetes.render_kinds import QUEUE_LABEL, VOLCANO

if TYPE_CHECKING:
    from launcher.targets.kubernetes.cluster_job import ClusterJob

POD_GROUP = ("scheduling.volcano.sh/v1beta1", "PodGroup")
MISSING_S = 3.0
"""How long pods may be missing before the job's events are looked at."""


class MissingPods:
    """Finds out why pods are missing, or silently do not start, once that has lasted a while.

    It reports each answer once.
    """

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        self._limit_s = PodSettings.of(job.plan).start_limit_s
        self._since: float | None = None
        self._next_at = float("-inf")
        self._told: set[str] = set()
        self._any_pod = False
        self.refused = ""
        """Why the server makes no pod of a missing node, ever; empty if nothing says so."""

    def read(self, pods: tuple[PodView, ...], wanted: frozenset[int], now: float) -> Iterator[str]:
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
            item = self._job.read()
            names = [pod.name for pod in silent]
            for line in read_reasons(self._job, item, names):
                is_final = not wanted <= present and is_for_good(line)
                self.refused = line if is_final else self.refused
                if same_words(line) not in self._told:
                    self._told.add(same_words(line))
                    yield line + (tell_limit(self._limit_s) if is_final else "")
            if not self._told and now - self._since >= RARE_LOOK_S:
                waits = silent[0].waits if silent else ""
                if waits or not self._any_pod:
                    self._told.add("")
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
        for one in (*names, *pods):
            chosen = f"involvedObject.name={one}"
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
