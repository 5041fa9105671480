"""What a cluster's words for pods and jobs mean, such as Evicted, OOMKilled or ImagePullBackOff:
cause, fix, and the end. Pure.

Objects are plain data, as the API server sends them.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import NodeOutcome, is_out_of_memory, parse_node_outcome
from launcher.contract.errors import name_exit_code
from launcher.follow.endings import Part

Object = Mapping[str, Any]

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
REPLICA_INDEX = "training.kubeflow.org/replica-index"


class Trouble(NamedTuple):
    """What keeps a pod from running, or ended it: Kubernetes' ``word`` for it, and its cause.

    ``{kubectl}`` in the fix stands for the command to type for the pods' namespace.
    """

    word: str
    cause: Cause
    fix: str


# fmt: off
_TROUBLES = (
    Trouble("Unschedulable", Cause.NO_ROOM,
            "lower resources of the job, or {kubectl} describe nodes"),
    Trouble("ImagePullBackOff", Cause.IMAGE_PULL,
            "make push IMAGE=..., --image REF, or kubernetes.image_pull_secrets"),
    Trouble("CreateContainerConfigError", Cause.CONTAINER_START,
            "create the Secret or ConfigMap that it names"),
    Trouble("CreateContainerError", Cause.CONTAINER_START,
            "the image lacks python3, or a mount fails: --image, kubernetes.volumes"),
    Trouble("Evicted", Cause.PREEMPTED,
            "{kubectl} describe node: its disk or memory was full"),
    Trouble("CrashLoopBackOff", Cause.UNKNOWN,
            "its log tells why the container ends again and again"),
    Trouble("DisruptionTarget", Cause.PREEMPTED,
            "its node was drained or wanted by others; kubernetes.priority_class helps"),
)
# fmt: on
OOM = Trouble(
    "OOMKilled", Cause.OUT_OF_MEMORY, "raise resources.memory; /dev/shm counts against it"
)
_SAME = {
    "ImagePullBackOff": ("ErrImagePull", "ErrImageNeverPull", "InvalidImageName"),
    "CreateContainerError": ("RunContainerError", "StartError"),
    "DisruptionTarget": ("Preempting", "NodeLost"),
}
WORDS: Mapping[str, Trouble] = {
    word: trouble for trouble in _TROUBLES for word in (trouble.word, *_SAME.get(trouble.word, ()))
}
"""Troubles by Kubernetes' words. ``ContainerEnd.is_oom`` decides what counts as ``OOM``."""

START_FAILURES = ("StartError", "ContainerCannotRun", "RunContainerError")
"""Kubernetes' words for a container whose program could not be started."""


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    """How one container ended; ``word`` is Kubernetes' reason, times are as it writes them."""

    exit_code: int
    word: str
    message: str
    started: str
    finished: str

    @property
    def outcome(self) -> NodeOutcome | None:
        """What the agent in it left as its termination message."""
        return parse_node_outcome(self.message)

    @property
    def is_oom(self) -> bool:
        """Whether it ran out of memory: the agent says how its workers ended."""
        codes = [end.exit_code for end in self.outcome.worker_ends] if self.outcome else []
        return is_out_of_memory(codes, oom_killed=self.word == OOM.word)


@dataclass(frozen=True, kw_only=True)
class PodView:
    """One pod at an instant.

    ``node_index`` is None for an operator's own pods. ``restarts`` counts earlier containers of
    the same pod; ``exit_code`` is as a shell's. ``ending`` is the present container's,
    ``ending_before`` the one's before it. ``conditions`` are times and words on its placement.
    Times are as Kubernetes writes them, empty if unknown.
    """

    name: str
    uid: str
    node_index: int | None
    created: str
    container: str
    state: NodeState
    restarts: int = 0
    exit_code: int | None = None
    trouble: Trouble | None = None
    message: str = ""
    has_started: bool = False
    ending: ContainerEnd | None = None
    ending_before: ContainerEnd | None = None
    started: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    preparing: str = ""
    """The init container that runs; empty if none does."""
    scheduler: str = ""
    """The scheduler that has not looked at it yet; empty once it has."""

    @property
    def cause(self) -> Cause | None:
        """That of its trouble."""
        return self.trouble.cause if self.trouble else None

    @property
    def waits(self) -> str:
        """Why it may wait though nothing is wrong with it; empty if nothing is known."""
        what = f"{self.name}: its scheduler {self.scheduler} has not looked at it: does it run?"
        return what if self.scheduler else ""


def section(item: Object, *path: str) -> Object:
    """A part of an object; empty if it is missing or null."""
    for name in path:
        item = item.get(name) or {}
    return item


def true_conditions(item: Object) -> dict[str, Object]:
    """The conditions of an object that hold, by type."""
    conditions = section(item, "status").get("conditions") or ()
    return {
        condition["type"]: condition
        for condition in conditions
        if condition.get("status") == "True"
    }


def parse_pod(pod: Object, masters: int = 0) -> PodView:
    """A pod's object as a view; ``masters`` (0 or 1) are the nodes before a PyTorchJob's workers.

    A pod whose object says nothing yet is pending.
    """
    metadata, status, spec = section(pod, "metadata"), section(pod, "status"), section(pod, "spec")
    container = (spec.get("containers") or [{}])[0].get("name", "")
    named = (s for s in status.get("containerStatuses") or () if s.get("name") == container)
    main: Object = next(named, {})
    state = section(main, "state")
    # A container waits for ever behind an init container that fails.
    inits = status.get("initContainerStatuses") or ()
    blocking = next(filter(_is_stuck, inits), main)
    ended = section(blocking, "state", "terminated")
    trouble, message = _trouble(pod, blocking)
    restarts, phase = main.get("restartCount", 0), status.get("phase", "Pending")
    # The kubelet reports a container's end before it changes the pod's phase. If it starts the
    # container again, it next reports "waiting".
    has_ended = phase in ("Failed", "Succeeded") or "terminated" in state
    exit_code = ended.get("exitCode", 137 if phase == "Failed" else None)
    going = NodeState.RUNNING if "running" in state else NodeState.PENDING
    return PodView(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        node_index=_index(section(metadata, "annotations"), section(metadata, "labels"), masters),
        created=metadata.get("creationTimestamp") or "",
        container=container,
        state=NodeState.EXITED if has_ended else going,
        restarts=restarts,
        exit_code=exit_code if has_ended else None,
        trouble=trouble,
        message=message,
        has_started="running" in state or "terminated" in state or restarts > 0,
        ending=_ending(ended),
        ending_before=_ending(section(main, "lastState", "terminated")),
        started=(section(state, "running") or ended).get("startedAt") or "",
        conditions=tuple(_conditions(pod)),
        preparing=next((s["name"] for s in inits if section(s, "state", "running")), ""),
        scheduler=_unseen_by(spec, status),
    )


def _unseen_by(spec: Object, status: Object) -> str:
    looked_at = spec.get("nodeName") or status.get("conditions") or status.get("containerStatuses")
    return "" if looked_at else spec.get("schedulerName") or ""


def _is_stuck(preparing: Object) -> bool:
    waiting, ended = (section(preparing, "state", name) for name in ("waiting", "terminated"))
    return bool(ended.get("exitCode")) or waiting.get("reason") in WORDS


def _conditions(pod: Object) -> Iterator[tuple[str, str]]:
    """When a pod was placed, could not be, or was disrupted."""
    machine = section(pod, "spec").get("nodeName") or "a node"
    for condition in section(pod, "status").get("conditions") or ():
        message = condition.get("message") or condition.get("reason") or ""
        words = {
            ("PodScheduled", "True"): f"placed on {machine}",
            ("PodScheduled", "False"): f"cannot be placed: {message}",
            ("DisruptionTarget", "True"): f"disrupted: {message}",
        }.get((condition.get("type"), condition.get("status")))
        if words and (stamp := condition.get("lastTransitionTime")):
            yield stamp, words


def _ending(ended: Object) -> ContainerEnd | None:
    if not ended:
        return None
    return ContainerEnd(
        exit_code=int(ended.get("exitCode") or 0),
        word=ended.get("reason") or "",
        message=(ended.get("message") or "").strip(),
        started=ended.get("startedAt") or "",
        finished=ended.get("finishedAt") or "",
    )


def seconds_of(stamp: str) -> float:
    """A time as Kubernetes writes it, in seconds since the epoch; 0 for anything else."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(stamp).timestamp()
    return 0.0


def event_time(event: Object) -> float:
    """When an event was seen last, in seconds since the epoch; 0 if it does not say."""
    stamps = (
        section(event, "series").get("lastObservedTime"),
        *(event.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")),
        section(event, "metadata").get("creationTimestamp"),
    )
    return next((seconds_of(stamp) for stamp in stamps if stamp), 0.0)


def message_of(event: Object) -> str:
    """An event's message on one line."""
    return " ".join((event.get("message") or "").split())


def newest_of_each(pods: Iterable[PodView]) -> dict[int, PodView]:
    """The pod that was made last for each node index, whatever the pods' names."""
    # Times of creation are whole seconds: of two equal ones, the pod that runs is the later one.
    ordered = sorted(pods, key=lambda pod: (pod.created, pod.state is not NodeState.EXITED))
    return {pod.node_index: pod for pod in ordered if pod.node_index is not None}


def _index(annotations: Object, labels: Object, masters: int) -> int | None:
    if (text := labels.get(INDEX_LABEL) or annotations.get(INDEX_LABEL)) is not None:
        return int(text)
    if REPLICA_INDEX in labels:
        is_worker = labels.get("training.kubeflow.org/replica-type", "worker").lower() == "worker"
        return int(labels[REPLICA_INDEX]) + (masters if is_worker else 0)
    return None


def _trouble(pod: Object, container: Object) -> tuple[Trouble | None, str]:
    """The first thing that is wrong, with the cluster's message."""
    status = section(pod, "status")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return WORDS["Unschedulable"], condition.get("message", "")
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return WORDS["DisruptionTarget"], condition.get("message", "")
    ended = section(container, "state", "terminated")
    before = section(container, "lastState", "terminated")
    if status.get("reason") in WORDS:
        return WORDS[status["reason"]], status.get("message", "")
    if any(end and end.is_oom for end in map(_ending, (ended, before))):
        return OOM, ""
    waiting = section(container, "state", "waiting")
    # Between two failed starts Kubernetes calls it a crash; why the last one failed says more.
    if waiting.get("reason") == "CrashLoopBackOff" and before.get("reason") in START_FAILURES:
        return WORDS["StartError"], before.get("message", "")
    for state in (waiting, ended):
        if state.get("reason") in WORDS:
            return WORDS[state["reason"]], state.get("message", "")
    return None, ended.get("message", "").strip()


# -- the job itself -----------------------------------------------------------------------------

ENDED_BY_OTHERS = (137, 143)
"""Exit codes of a container that got SIGTERM, and SIGKILL after its grace."""
GOOD_ENDS = ("Succeeded", "Complete", "Completed", "SuccessCriteriaMet")
"""Types of conditions by which Job, JobSet, PyTorchJob and TrainJob say that they are done."""
BAD_ENDS = ("Failed", "FailureTarget")


@dataclass(frozen=True, kw_only=True)
class JobEnd(Part):
    """How a job's object says that it has ended; ``word`` is the controller's reason."""

    word: str = ""


def parse_job_end(item: Object) -> JobEnd | None:
    """How a job ended, by its conditions; None while it goes on.

    It ended at the first of them: a Job decides, ends its pods, and only then is ``Failed``.
    """
    conditions = true_conditions(item)
    for kinds in (BAD_ENDS, GOOD_ENDS):
        if holding := [conditions[kind] for kind in kinds if kind in conditions]:
            condition, is_good = holding[0], kinds is GOOD_ENDS
            word = condition.get("reason", "")
            stamps = (seconds_of(c.get("lastTransitionTime") or "") for c in holding)
            return JobEnd(
                words="" if is_good else condition.get("message") or word,
                cause=Cause.KILLED if "DeadlineExceeded" in word else None,
                exit_code=int(not is_good),
                ended_at=min(filter(None, stamps), default=math.inf),
                word=word,
            )
    return None


def count_wanted(item: Object) -> int:
    """How many pods a job's object asks for."""
    spec = section(item, "spec")
    match item["kind"]:
        case "PyTorchJob":
            replicas = spec["pytorchReplicaSpecs"].values()
            return sum(int(replica.get("replicas", 1)) for replica in replicas)
        case "TrainJob":
            return int((spec.get("trainer") or {}).get("numNodes", 1))
        case "JobSet":
            jobs = (replicated["template"]["spec"] for replicated in spec["replicatedJobs"])
            return sum(int(job.get("parallelism", 1)) for job in jobs)
    return int(spec.get("parallelism", 1))


def is_suspended(item: Object) -> bool:
    """Whether a job's object asks for no pods at present."""
    spec = section(item, "spec")
    return bool(spec.get("suspend") or section(spec, "runPolicy").get("suspend"))


def find_parts(end: Part, pods: Iterable[PodView], kubectl: str = "kubectl") -> list[Part]:
    """The failed pods of a job that has ended; where none says more, the job itself."""
    parts = [_find_part(pod, end, kubectl) for pod in pods if end.exit_code]
    return list(filter(None, parts)) or [end]


def _find_part(pod: PodView, job: Part, kubectl: str) -> Part | None:
    """The pod by the ending that counts for its failed job; None if it has none.

    Once a job has failed, its controller ends what still runs: such an ending says nothing, but
    the one of the container before it may.
    """
    end, code, message = pod.ending, pod.exit_code, pod.message
    ended_at = seconds_of(end.finished) if end else 0.0
    was_ended = code in ENDED_BY_OTHERS and ended_at >= job.ended_at
    if not code or was_ended:
        if (end := pod.ending_before) is None or not end.exit_code:
            return None
        code, message, ended_at = end.exit_code, end.message, seconds_of(end.finished)
    outcome = end.outcome if end else None
    text = outcome.detail if outcome and end and message == end.message else message
    last = "".join(text.splitlines()[-1:])
    if not last and not (outcome and outcome.first):  # whose record says more
        last = f"ended with exit code {name_exit_code(code)}"
    is_named = pod.cause in (Cause.OUT_OF_MEMORY, Cause.CONTAINER_START)
    words = ": ".join(filter(None, (pod.name, last)))
    return Part(
        words=describe_trouble(pod, kubectl) if is_named else words,
        cause=pod.cause if is_named else None,
        exit_code=code,
        outcome=outcome,
        ended_at=ended_at or math.inf,
    )


def describe_trouble(pod: PodView, kubectl: str = "kubectl") -> str:
    """What is wrong with a pod, for a person: Kubernetes' word, its message, and the fix."""
    assert pod.trouble is not None, "asked for pods in trouble"
    message = f": {pod.message}" if pod.message else ""
    fix = pod.trouble.fix.format(kubectl=kubectl)
    if claim := find_missing_claim(pod):
        fix = f"make the claim {claim}, as k8s/base/storage.yaml does"
        fix += ", or kubernetes.checkpoint: pvc/OTHER"
    elif "unbound immediate PersistentVolumeClaims" in pod.message:
        fix = f"{kubectl} get pvc,storageclass: the claim needs a class that can make its volume"
    return f"{pod.name}: {pod.trouble.word}{message}; {fix}"


def find_missing_claim(pod: PodView) -> str | None:
    """The claim without which a pod cannot be scheduled."""
    match = re.search(r'persistentvolumeclaim "([^"]+)" not found', pod.message)
    return match[1] if match and pod.cause is Cause.NO_ROOM else None
