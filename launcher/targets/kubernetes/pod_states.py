"""What a cluster says of pods and jobs, in this project's words. Pure.

Objects are plain data, as the API server sends them.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from launcher.contract.causes import RETRY_FROM, Cause, cause_of_exit_code
from launcher.contract.ending import Ending, parse_node_outcome
from launcher.contract.errors import name_exit_code
from launcher.contract.states import NodeState
from launcher.contract.worker_end import is_out_of_memory

Object = Mapping[str, Any]

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
REPLICA_INDEX = "training.kubeflow.org/replica-index"


class Trouble(enum.Enum):
    """What keeps a pod from running, or ended it."""

    UNSCHEDULABLE = "Unschedulable"
    IMAGE = "ImagePullBackOff"
    CONFIG = "CreateContainerConfigError"
    START = "CreateContainerError"
    OUT_OF_MEMORY = "OOMKilled"
    EVICTED = "Evicted"
    CRASH_LOOP = "CrashLoopBackOff"
    DISRUPTED = "DisruptionTarget"


WORDS: Mapping[str, Trouble] = {
    **{trouble.value: trouble for trouble in Trouble if trouble is not Trouble.OUT_OF_MEMORY},
    "ErrImagePull": Trouble.IMAGE,
    "ErrImageNeverPull": Trouble.IMAGE,
    "InvalidImageName": Trouble.IMAGE,
    "RunContainerError": Trouble.START,
    "StartError": Trouble.START,
    "Preempting": Trouble.DISRUPTED,
    "NodeLost": Trouble.DISRUPTED,
}
"""Troubles by Kubernetes' words. ``is_oom`` decides what counts as out of memory."""

NOT_STARTED = ("StartError", "ContainerCannotRun", "RunContainerError")
"""Kubernetes' words for a container whose program could not be started."""

FIXES: Mapping[Trouble, str] = {
    Trouble.UNSCHEDULABLE: "lower resources of the job, or {kubectl} describe nodes",
    Trouble.IMAGE: "make push IMAGE=..., --image REF, or kubernetes.image_pull_secrets",
    Trouble.CONFIG: "create the Secret or ConfigMap that it names",
    Trouble.START: "the image lacks python3, or a mount fails: --image, kubernetes.volumes",
    Trouble.OUT_OF_MEMORY: "raise resources.memory; /dev/shm counts against it",
    Trouble.EVICTED: "{kubectl} describe node: its disk or memory was full",
    Trouble.CRASH_LOOP: "its log tells why the container ends again and again",
    Trouble.DISRUPTED: "its node was drained or wanted by others; kubernetes.priority_class helps",
}


def fix_of(trouble: Trouble, kubectl: str = "kubectl") -> str:
    """What a person may do about it; ``kubectl`` is the command to type for the pods' namespace."""
    return FIXES[trouble].format(kubectl=kubectl)


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    """How one container ended; ``word`` is Kubernetes' reason, times are as it writes them."""

    exit_code: int
    word: str
    message: str
    started: str
    finished: str


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
    def waits(self) -> str:
        """Why it may wait though nothing is wrong with it; empty if nothing is known."""
        told = f"{self.name}: its scheduler {self.scheduler} has not looked at it: does it run?"
        return told if self.scheduler else ""


def section(item: Object, *path: str) -> Object:
    """A part of an object; empty if it is missing or null."""
    for name in path:
        item = item.get(name) or {}
    return item


def true_conditions(item: Object) -> dict[str, Object]:
    """The conditions of an object that hold, by type."""
    conditions = section(item, "status").get("conditions") or ()
    return {found["type"]: found for found in conditions if found.get("status") == "True"}


def parse_pod(pod: Object, masters: int = 0) -> PodView:
    """A pod's object as a view; ``masters`` (0 or 1) are the nodes before a PyTorchJob's workers.

    A pod whose object says nothing yet is pending.
    """
    metadata, status, spec = section(pod, "metadata"), section(pod, "status"), section(pod, "spec")
    container = (spec.get("containers") or [{}])[0].get("name", "")
    named = (s for s in status.get("containerStatuses") or () if s.get("name") == container)
    own: Object = next(named, {})
    state = section(own, "state")
    # A container waits for ever behind an init container that fails.
    inits = status.get("initContainerStatuses") or ()
    blocking = next(filter(_is_stuck, inits), own)
    ended = section(blocking, "state", "terminated")
    trouble, message = _trouble(pod, blocking)
    restarts, phase = own.get("restartCount", 0), status.get("phase", "Pending")
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
        ending_before=_ending(section(own, "lastState", "terminated")),
        started=(section(state, "running") or ended).get("startedAt") or "",
        conditions=tuple(_conditions(pod)),
        preparing=next((s["name"] for s in inits if section(s, "state", "running")), ""),
        scheduler=_unseen_by(spec, status),
    )


def _unseen_by(spec: Object, status: Object) -> str:
    seen = spec.get("nodeName") or status.get("conditions") or status.get("containerStatuses")
    return "" if seen else spec.get("schedulerName") or ""


def _is_stuck(preparing: Object) -> bool:
    waiting, ended = (section(preparing, "state", name) for name in ("waiting", "terminated"))
    return bool(ended.get("exitCode")) or waiting.get("reason") in WORDS


def _conditions(pod: Object) -> Iterator[tuple[str, str]]:
    """When a pod was placed, could not be, or was disrupted."""
    machine = section(pod, "spec").get("nodeName") or "a node"
    for found in section(pod, "status").get("conditions") or ():
        said = found.get("message") or found.get("reason") or ""
        words = {
            ("PodScheduled", "True"): f"placed on {machine}",
            ("PodScheduled", "False"): f"cannot be placed: {said}",
            ("DisruptionTarget", "True"): f"disrupted: {said}",
        }.get((found.get("type"), found.get("status")))
        if words and (stamp := found.get("lastTransitionTime")):
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


def is_oom(word: str, message: str) -> bool:
    """Whether a container ran out of memory, by Kubernetes' word for its end.

    ``message`` is its termination message, in which an agent says how its workers ended.
    """
    outcome = parse_node_outcome(message)
    codes = [end.exit_code for end in outcome.ends] if outcome else []
    return is_out_of_memory(codes, oom_killed=word == Trouble.OUT_OF_MEMORY.value)


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


def sort_pods(pods: Iterable[PodView]) -> list[PodView]:
    """Oldest first."""
    return sorted(pods, key=lambda pod: (pod.created, pod.name))


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


def _trouble(pod: Object, own: Object) -> tuple[Trouble | None, str]:
    """The first thing that is wrong, with the cluster's message."""
    status = section(pod, "status")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Trouble.UNSCHEDULABLE, condition.get("message", "")
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return Trouble.DISRUPTED, condition.get("message", "")
    ended, before = section(own, "state", "terminated"), section(own, "lastState", "terminated")
    if status.get("reason") in WORDS:
        return WORDS[status["reason"]], status.get("message", "")
    if any(is_oom(one.get("reason") or "", one.get("message") or "") for one in (ended, before)):
        return Trouble.OUT_OF_MEMORY, ""
    waiting = section(own, "state", "waiting")
    # Between two failed starts Kubernetes calls it a crash; why the last one failed says more.
    if waiting.get("reason") == "CrashLoopBackOff" and before.get("reason") in NOT_STARTED:
        return Trouble.START, before.get("message", "")
    for found in (waiting, ended):
        if found.get("reason") in WORDS:
            return WORDS[found["reason"]], found.get("message", "")
    return None, ended.get("message", "").strip()


# -- the job itself -----------------------------------------------------------------------------

ENDED_BY_OTHERS = (137, 143)
"""Exit codes of a container that got SIGTERM, and SIGKILL after its grace."""
GOOD_ENDS = ("Succeeded", "Complete", "Completed", "SuccessCriteriaMet")
"""Types of conditions by which Job, JobSet, PyTorchJob and TrainJob say that they are done."""
BAD_ENDS = ("Failed", "FailureTarget")
DELETED = "Deleted"
"""The ``JobEnd.word`` of a job whose object is gone."""


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a job's object says that it has ended; ``word`` is the controller's reason.

    ``at`` is in seconds since the epoch; None if unknown.
    """

    succeeded: bool
    word: str
    message: str
    at: float | None = None


def parse_job_end(item: Object) -> JobEnd | None:
    """How a job ended, by its conditions; None while it goes on."""
    found = true_conditions(item)
    for kind in (*BAD_ENDS, *GOOD_ENDS):
        if (condition := found.get(kind)) is not None:
            stamp = condition.get("lastTransitionTime")
            return JobEnd(
                succeeded=kind in GOOD_ENDS,
                word=condition.get("reason", ""),
                message=condition.get("message", ""),
                at=seconds_of(stamp) if stamp else None,
            )
    return None


def count_wanted(item: Object) -> int:
    """How many pods a job's object asks for."""
    spec = section(item, "spec")
    match item["kind"]:
        case "PyTorchJob":
            return sum(int(one.get("replicas", 1)) for one in spec["pytorchReplicaSpecs"].values())
        case "TrainJob":
            return int((spec.get("trainer") or {}).get("numNodes", 1))
        case "JobSet":
            jobs = (one["template"]["spec"] for one in spec["replicatedJobs"])
            return sum(int(one.get("parallelism", 1)) for one in jobs)
    return int(spec.get("parallelism", 1))


def is_suspended(item: Object) -> bool:
    """Whether a job's object asks for no pods at present."""
    spec = section(item, "spec")
    return bool(spec.get("suspend") or section(spec, "runPolicy").get("suspend"))


def judge_job(end: JobEnd, pods: Iterable[PodView], kubectl: str = "kubectl") -> Ending:
    """Why the run ended, with the detail of the pod whose worker failed first."""
    if end.succeeded:
        return Ending(cause=Cause.COMPLETED)
    if end.word == DELETED:
        return Ending(cause=Cause.STOP_REQUESTED, detail=end.message)
    failed = filter(None, (_as_failed(pod, end) for pod in pods))
    # The pod that says why comes first.

    def by_cause(pod: PodView) -> tuple[bool, bool, bool, float]:
        return order_of_failure(pod.exit_code or 0, pod.ending, pod.trouble)

    for pod in sorted(failed, key=by_cause)[:1]:
        if pod.trouble is Trouble.OUT_OF_MEMORY:
            told = f"{pod.name}: OOMKilled; {fix_of(Trouble.OUT_OF_MEMORY)}"
            return Ending(cause=Cause.OUT_OF_MEMORY, detail=told)
        if pod.trouble is Trouble.START:
            return Ending(cause=Cause.BAD_INPUT, detail=describe_trouble(pod, kubectl))
        last = last_words(pod.message) or f"ended with exit code {name_exit_code(pod.exit_code)}"
        # The agent's outcome says more than its exit code: out of memory has no own code.
        outcome = parse_node_outcome(pod.message)
        # A pod that was killed after its agent reported success did not complete.
        reason = outcome.reason if outcome else Cause.COMPLETED
        if reason is Cause.COMPLETED:
            reason = cause_of_exit_code(pod.exit_code or 0)
        return Ending(cause=reason, detail=f"{pod.name}: {last}")
    if "DeadlineExceeded" in end.word:
        return Ending(cause=Cause.KILLED, detail=end.message)
    return Ending(cause=Cause.TRAINING_FAILED, detail=end.message or end.word)


def _as_failed(pod: PodView, end: JobEnd) -> PodView | None:
    """The pod with the ending that counts for its failed job; None if it has none.

    Once a job has failed, its controller ends what still runs: such an ending says nothing, but
    the one of the container before it may.
    """
    was_ended = pod.exit_code in ENDED_BY_OTHERS and (
        end.at is not None and pod.ending and seconds_of(pod.ending.finished) >= end.at
    )
    if pod.exit_code and not was_ended:
        return pod
    before = pod.ending_before
    if before is None or not before.exit_code:
        return None
    return replace(pod, exit_code=before.exit_code, ending=before, message=before.message)


def last_words(message: str) -> str:
    """A termination message on one line; empty if it says nothing."""
    outcome = parse_node_outcome(message)
    said = outcome.detail if outcome else message
    return " ".join(said.splitlines()[-1:])


def order_of_failure(
    exit_code: int, ending: ContainerEnd | None, trouble: Trouble | None = None
) -> tuple[bool, bool, bool, float]:
    """Sort key: out of memory comes first, as it ends other nodes too, and leaves no message.

    Then permanent failures; causes before the failures that followed them; then by time.
    """
    word, message, finished = "", "", ""
    if ending is not None:
        word, message, finished = ending.word, ending.message, ending.finished
    has_memory = trouble is not Trouble.OUT_OF_MEMORY and not is_oom(word, message)
    is_worth_a_retry = exit_code >= RETRY_FROM and trouble is not Trouble.START
    if (outcome := parse_node_outcome(message)) and (first := outcome.first):
        return has_memory, is_worth_a_retry, first.is_collateral, first.failed_at
    return has_memory, is_worth_a_retry, False, seconds_of(finished) or float("inf")


def describe_trouble(pod: PodView, kubectl: str = "kubectl") -> str:
    """What is wrong with a pod, for a person: Kubernetes' word, its message, and the fix."""
    assert pod.trouble is not None, "asked for pods in trouble"
    said = f": {pod.message}" if pod.message else ""
    fix = fix_of(pod.trouble, kubectl)
    if claim := find_missing_claim(pod):
        fix = f"make the claim {claim}, as k8s/base/storage.yaml does"
        fix += ", or kubernetes.checkpoint: pvc/OTHER"
    elif "unbound immediate PersistentVolumeClaims" in pod.message:
        fix = f"{kubectl} get pvc,storageclass: the claim needs a class that can make its volume"
    return f"{pod.name}: {pod.trouble.value}{said}; {fix}"


def find_missing_claim(pod: PodView) -> str | None:
    """The claim without which a pod cannot be scheduled."""
    found = re.search(r'persistentvolumeclaim "([^"]+)" not found', pod.message)
    return found[1] if found and pod.trouble is Trouble.UNSCHEDULABLE else None
