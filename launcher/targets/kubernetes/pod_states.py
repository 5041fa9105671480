"""What a cluster says of pods and jobs, in this project's words. Pure: objects in, states out.

Objects are as the API server sends them, as plain data.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from launcher.agent.faults import WorkerEnd
from launcher.contract.errors import name_exit_code
from launcher.contract.reasons import RETRY_FROM, NodeState, Reason, reason_of_exit_code

Object = Mapping[str, Any]

INDEX_LABELS = ("batch.kubernetes.io/job-completion-index",)
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
MESSAGE_LINES = 1


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


WORDS: Mapping[str, Trouble] = MappingProxyType(
    {
        **{trouble.value: trouble for trouble in Trouble},
        "ErrImagePull": Trouble.IMAGE,
        "ErrImageNeverPull": Trouble.IMAGE,
        "InvalidImageName": Trouble.IMAGE,
        "CreateContainerConfigError": Trouble.CONFIG,
        "RunContainerError": Trouble.START,
        "StartError": Trouble.START,
        "Preempting": Trouble.DISRUPTED,
        "NodeLost": Trouble.DISRUPTED,
    }
)
"""Kubernetes' words for them."""

NOT_STARTED = ("StartError", "ContainerCannotRun", "RunContainerError")
"""Kubernetes' words for a container whose program could not be started."""

FIX: Mapping[Trouble, str] = MappingProxyType(
    {
        Trouble.UNSCHEDULABLE: "lower resources of the job, or kubectl describe nodes",
        Trouble.IMAGE: "make push IMAGE=..., --image REF, or kubernetes.image_pull_secrets",
        Trouble.CONFIG: "create the Secret or ConfigMap that it names",
        Trouble.START: "kubectl describe pod: the image lacks python3, or a mount fails",
        Trouble.OUT_OF_MEMORY: "raise resources.memory; /dev/shm counts against it",
        Trouble.EVICTED: "kubectl describe node: its disk or memory was full",
        Trouble.CRASH_LOOP: "its log tells why the container ends again and again",
        Trouble.DISRUPTED: "nothing: the pod is made anew; kubernetes.priority_class helps",
    }
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one container ended; ``word`` is Kubernetes' own, times are as it writes them."""

    exit_code: int
    word: str
    message: str
    started: str
    finished: str


@dataclass(frozen=True, kw_only=True)
class PodView:
    """One pod at an instant.

    ``node_index`` is the node that it is, None for pods that are none (an operator's own).
    ``restarts`` counts earlier containers of the same pod; ``exit_code`` is a shell's. ``ending``
    is that of the present container, ``ending_before`` of the one before it. Times are as
    Kubernetes writes them, empty where it has not said.
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
    ending: Ending | None = None
    ending_before: Ending | None = None
    machine: str = ""
    scheduled: str = ""
    started: str = ""


def parse_pod(pod: Object, masters: int = 0) -> PodView:
    """A pod's object as a view; ``masters`` (0 or 1) are the nodes before a PyTorchJob's workers.

    What is not there yet is taken as pending.
    """
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    container = ((pod.get("spec") or {}).get("containers") or [{}])[0].get("name", "")
    named = [s for s in status.get("containerStatuses") or () if s.get("name") == container]
    own: Object = named[0] if named else {}
    state = own.get("state") or {}
    ended = state.get("terminated") or {}
    trouble, message = _trouble(status, own)
    exit_code = ended.get("exitCode")
    phase = status.get("phase", "Pending")
    if phase == "Failed" and exit_code is None:
        exit_code = 137
    # The kubelet tells a container's end before the pod's phase changes; "waiting" follows where
    # it starts the container again.
    has_ended = phase in ("Failed", "Succeeded") or "terminated" in state
    return PodView(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        node_index=_index(metadata.get("labels") or {}, metadata.get("annotations") or {}, masters),
        created=metadata.get("creationTimestamp") or "",
        container=container,
        state=_node_state(phase, state),
        restarts=own.get("restartCount", 0),
        exit_code=exit_code if has_ended else None,
        trouble=trouble,
        message=message,
        has_started="running" in state or "terminated" in state or own.get("restartCount", 0) > 0,
        ending=_ending(ended),
        ending_before=_ending((own.get("lastState") or {}).get("terminated") or {}),
        machine=(pod.get("spec") or {}).get("nodeName") or "",
        scheduled=_scheduled(status),
        started=((state.get("running") or ended).get("startedAt")) or "",
    )


def _ending(ended: Object) -> Ending | None:
    if not ended:
        return None
    return Ending(
        exit_code=int(ended.get("exitCode") or 0),
        word=ended.get("reason") or "",
        message=(ended.get("message") or "").strip(),
        started=ended.get("startedAt") or "",
        finished=ended.get("finishedAt") or "",
    )


def _scheduled(status: Object) -> str:
    """When the scheduler found a place for it."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return condition.get("lastTransitionTime") or ""
    return ""


def seconds_of(stamp: str) -> float:
    """A time as Kubernetes writes it, in seconds since the epoch; 0 for anything else."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(stamp).timestamp()
    return 0.0


def newest_of_each(pods: Iterable[PodView]) -> dict[int, PodView]:
    """Each node's pod of now, by node index: the one made last, whatever the pods' names."""
    # Times of creation are whole seconds: of two, the one that lives has come for the other.
    ordered = sorted(pods, key=lambda pod: (pod.created, pod.state is not NodeState.EXITED))
    return {pod.node_index: pod for pod in ordered if pod.node_index is not None}


def _node_state(phase: str, state: Object) -> NodeState:
    if phase in ("Succeeded", "Failed") or "terminated" in state:
        return NodeState.EXITED
    return NodeState.RUNNING if "running" in state else NodeState.PENDING


def _index(labels: Object, annotations: Object, after: int) -> int | None:
    for name in INDEX_LABELS:
        if (text := labels.get(name) or annotations.get(name)) is not None:
            return int(text)
    if REPLICA_INDEX in labels:
        is_worker = labels.get(REPLICA_TYPE, "worker").lower() == "worker"
        return int(labels[REPLICA_INDEX]) + (after if is_worker else 0)
    return None


def _trouble(status: Object, own: Object) -> tuple[Trouble | None, str]:
    """The first thing that is wrong, in the cluster's own words."""
    for condition in status.get("conditions") or ():
        is_true = condition.get("status") == "True"
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Trouble.UNSCHEDULABLE, condition.get("message", "")
        if condition.get("type") == "DisruptionTarget" and is_true:
            return Trouble.DISRUPTED, condition.get("message", "")
    if status.get("reason") in WORDS:
        return WORDS[status["reason"]], status.get("message", "")
    state, last = own.get("state") or {}, own.get("lastState") or {}
    waiting = state.get("waiting") or {}
    for found in (state.get("terminated") or {}, last.get("terminated") or {}):
        if found.get("reason") == "OOMKilled":
            return Trouble.OUT_OF_MEMORY, ""
    # Between two starts of such a container its pod is said to crash, which tells less.
    crashed = (last.get("terminated") or {}) if waiting.get("reason") == "CrashLoopBackOff" else {}
    if crashed.get("reason") in NOT_STARTED:
        return Trouble.START, crashed.get("message", "")
    for found in (waiting, state.get("terminated") or {}):
        if found.get("reason") in WORDS:
            return WORDS[found["reason"]], found.get("message", "")
    return None, (state.get("terminated") or {}).get("message", "").strip()


def parse_outcome(message: str) -> dict[str, Any] | None:
    """The agent's outcome that a termination message holds; None for any other message."""
    with contextlib.suppress(ValueError):
        found = json.loads(message)
        if isinstance(found, dict) and "reason" in found:
            return found
    return None


# -- the job itself -----------------------------------------------------------------------------

GOOD_ENDS = ("Succeeded", "Complete", "Completed", "SuccessCriteriaMet")
"""Types of conditions by which Job, JobSet, PyTorchJob and TrainJob say that they are done."""
BAD_ENDS = ("Failed", "FailureTarget")
DELETED = "Deleted"
"""Of a job whose object is gone."""


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a job's object says that it has ended; ``word`` is the controller's reason."""

    succeeded: bool
    word: str
    message: str


def parse_job_end(item: Object) -> JobEnd | None:
    """The end that a job's conditions tell; None while it goes on."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    true = {c["type"]: c for c in conditions if c.get("status") == "True"}
    for succeeded, types in ((False, BAD_ENDS), (True, GOOD_ENDS)):
        for kind in types:
            if kind in true:
                found = true[kind]
                return JobEnd(
                    succeeded=succeeded,
                    word=found.get("reason", ""),
                    message=found.get("message", ""),
                )
    return None


def is_suspended(item: Object) -> bool:
    """Whether a job's object asks for no pods for the time being."""
    spec = item["spec"]
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def parse_ended_at(item: Object) -> float | None:
    """When a job's conditions say that it ended, in seconds since the epoch."""
    for condition in (item.get("status") or {}).get("conditions") or ():
        is_end = condition["type"] in (*BAD_ENDS, *GOOD_ENDS) and condition.get("status") == "True"
        if is_end and (stamp := condition.get("lastTransitionTime")):
            return datetime.fromisoformat(stamp).timestamp()
    return None


def reason_of_end(end: JobEnd, pods: Iterable[PodView]) -> tuple[Reason, str]:
    """Why the run ended, and in detail: the pod whose worker failed first says it."""
    if end.succeeded:
        return Reason.COMPLETED, ""
    if end.word == DELETED:
        return Reason.STOP_REQUESTED, end.message
    failed = sort_failures(pods)
    for pod in failed:
        if pod.trouble is Trouble.OUT_OF_MEMORY:
            return Reason.OUT_OF_MEMORY, f"{pod.name}: OOMKilled; {FIX[Trouble.OUT_OF_MEMORY]}"
    if failed and failed[0].trouble is Trouble.START:
        return Reason.BAD_INPUT, describe_trouble(failed[0])
    if failed:
        last = last_words(failed[0].message)
        last = last or f"ended with exit code {name_exit_code(failed[0].exit_code)}"
        return reason_of_exit_code(failed[0].exit_code or 0), f"{failed[0].name}: {last}"
    if "DeadlineExceeded" in end.word:
        return Reason.KILLED, end.message
    return Reason.TRAINING_FAILED, end.message or end.word


def sort_failures(pods: Iterable[PodView]) -> list[PodView]:
    """The pods that have failed, the one first that says why."""
    return sorted((p for p in pods if p.exit_code not in (None, 0)), key=_order_of_failure)


def last_words(message: str) -> str:
    """What a termination message says of the failure, on a line; empty where it says nothing."""
    outcome = parse_outcome(message)
    said = str(outcome.get("detail", "")) if outcome else message
    return " ".join(said.splitlines()[-MESSAGE_LINES:])


def _order_of_failure(pod: PodView) -> tuple[bool, bool, float]:
    """Permanent causes first, then causes before what only fell with them, earlier before later."""
    is_worth_a_retry = (pod.exit_code or 0) >= RETRY_FROM and pod.trouble is not Trouble.START
    first: Any = (parse_outcome(pod.message) or {}).get("first")
    with contextlib.suppress(TypeError, ValueError):
        end = WorkerEnd(**first)
        return is_worth_a_retry, end.is_collateral, float(end.at)
    finished = seconds_of(pod.ending.finished) if pod.ending else 0.0
    return is_worth_a_retry, False, finished or float("inf")


def describe_trouble(pod: PodView) -> str:
    """What keeps a pod, for a person: Kubernetes' word, its own message, what to do."""
    assert pod.trouble is not None, "asked for pods in trouble"
    said = f": {pod.message}" if pod.message else ""
    return f"{pod.name}: {pod.trouble.value}{said}; {_fix(pod)}"


def _fix(pod: PodView) -> str:
    assert pod.trouble is not None, "asked for pods in trouble"
    if pod.trouble is Trouble.UNSCHEDULABLE:
        if missing := re.search(r'persistentvolumeclaim "([^"]+)" not found', pod.message):
            return (
                f"make the claim {missing[1]}, as k8s/base/storage.yaml does, "
                "or kubernetes.checkpoint: pvc/OTHER"
            )
        if "unbound immediate PersistentVolumeClaims" in pod.message:
            return "kubectl get pvc,storageclass: the claim needs a class that can make its volume"
    return FIX[pod.trouble]
