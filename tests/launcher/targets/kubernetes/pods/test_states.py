"""What a cluster says of pods and jobs, in this project's words."""

import math
from typing import Any

import pytest

from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import Ending
from launcher.follow.endings import judge_parts
from launcher.targets import kubernetes
from launcher.targets.kubernetes import api, pods, render
from launcher.targets.kubernetes.pods.states import (
    OOM,
    WORDS,
    ContainerEnd,
    JobEnd,
    PodView,
    count_wanted,
    describe_trouble,
    event_time,
    find_parts,
    is_suspended,
    newest_of_each,
    parse_job_end,
    parse_pod,
    seconds_of,
)
from tests.launcher.cluster_run import agents_outcome
from tests.launcher.fake_cluster import ended, pod
from tests.launcher.values import by_place, changeable

INDEX = "batch.kubernetes.io/job-completion-index"
WAITING: dict[str, Any] = {"phase": "Pending"}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Pending", "state": {"waiting": {"reason": reason, "message": message}}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "message": "preempted"}


@pytest.mark.parametrize(
    ("fields", "state", "code", "trouble"),
    [
        ({"phase": "Pending", "state": {}}, NodeState.PENDING, None, None),
        (waiting("ContainerCreating"), NodeState.PENDING, None, None),
        ({}, NodeState.RUNNING, None, None),
        ({"phase": "Succeeded", "state": ended(0)}, NodeState.EXITED, 0, None),
        ({"phase": "Succeeded", "state": {}}, NodeState.EXITED, None, None),
        # The kubelet tells the container's end first, and the pod's phase a moment later.
        ({"phase": "Running", "state": ended(0)}, NodeState.EXITED, 0, None),
        ({"phase": "Failed", "state": ended(3)}, NodeState.EXITED, 3, None),
        (waiting("ImagePullBackOff"), NodeState.PENDING, None, Cause.IMAGE_PULL),
        (waiting("ErrImagePull"), NodeState.PENDING, None, Cause.IMAGE_PULL),
        (waiting("InvalidImageName"), NodeState.PENDING, None, Cause.IMAGE_PULL),
        (waiting("CreateContainerConfigError"), NodeState.PENDING, None, Cause.CONTAINER_START),
        (waiting("CreateContainerError"), NodeState.PENDING, None, Cause.CONTAINER_START),
        ({"phase": "Failed", "state": ended(128, "StartError")}, NodeState.EXITED, 128,
         Cause.CONTAINER_START),
        ({"phase": "Pending", "state": {}, "conditions": [UNSCHEDULABLE]}, NodeState.PENDING, None,
         Cause.NO_ROOM),
        ({"phase": "Failed", "state": ended(137, "OOMKilled")}, NodeState.EXITED, 137,
         Cause.OUT_OF_MEMORY),
        ({"phase": "Failed", "state": {}, "reason": "Evicted"}, NodeState.EXITED, 137,
         Cause.PREEMPTED),
        ({**waiting("CrashLoopBackOff"), "phase": "Running", "restarts": 4}, NodeState.PENDING,
         None, Cause.UNKNOWN),
        ({**waiting("CrashLoopBackOff"), "restarts": 4, "last": ended(137, "OOMKilled")},
         NodeState.PENDING, None, Cause.OUT_OF_MEMORY),
        ({"phase": "Failed", "state": ended(143), "conditions": [DISRUPTED]}, NodeState.EXITED, 143,
         Cause.PREEMPTED),
    ],
)  # fmt: skip
def test_phases_and_reasons_become_states_and_troubles(fields, state, code, trouble):
    view = parse_pod(pod("digits-0", {INDEX: "0"}, **fields))
    assert (view.state, view.exit_code, view.cause) == (state, code, trouble)


@pytest.mark.parametrize(
    ("state", "phase", "code", "trouble"),
    [
        ({"waiting": {"reason": "ImagePullBackOff"}}, "Pending", None, Cause.IMAGE_PULL),
        (ended(128, "StartError"), "Failed", 128, Cause.CONTAINER_START),
    ],
)
def test_what_keeps_the_init_container_keeps_the_pod(state, phase, code, trouble):
    waits = waiting("PodInitializing")["state"]
    prepares = [{"name": "code", "state": state}]
    view = parse_pod(pod("d-0", {}, phase=phase, state=waits, initContainerStatuses=prepares))
    assert (view.cause, view.exit_code, view.has_started) == (trouble, code, False)


@pytest.mark.parametrize("made", ["01", "02"])
def test_the_newest_pod_of_a_node_is_that_made_last_and_of_two_of_one_second_the_one_that_lives(
    made,
):
    lost = pod("digits-0-zzz", {INDEX: "0"}, phase="Failed", state=ended(137))
    later = pod("digits-0-aaa", {INDEX: "0"})
    for item, second in ((lost, "01"), (later, made)):
        item["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{second}Z"
    for both in ((lost, later), (later, lost)):
        assert newest_of_each(map(parse_pod, both))[0].name == "digits-0-aaa"


def test_a_record_of_a_cluster_is_a_value_and_is_built_by_name():
    for room in (kubernetes, api, pods, render):
        assert (changeable(room), by_place(room)) == (set(), set())


def test_an_object_that_is_hardly_there_is_pending():
    view = parse_pod({"metadata": {"name": "a"}})
    assert view == PodView(
        **dict.fromkeys(("uid", "created", "container"), ""),
        name="a",
        node_index=None,
        state=NodeState.PENDING,
    )
    assert (view.has_started, view.waits, view.restarts) == (False, "", 0)
    unseen = parse_pod({"metadata": {"name": "a"}, "spec": {"schedulerName": "volcano"}})
    assert unseen.waits == "a: its scheduler volcano has not looked at it: does it run?"
    for seen in ({"conditions": [UNSCHEDULABLE]}, {"containerStatuses": [{"name": "node"}]}):
        assert not parse_pod({"spec": {"schedulerName": "volcano"}, "status": seen}).scheduler


def test_all_that_a_pod_says_is_in_its_view():
    when = "2026-01-01T00:00:0{}Z".format
    conditions = [
        {**DISRUPTED, "lastTransitionTime": when(5)},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": when(1)},
        {**UNSCHEDULABLE, "reason": "", "lastTransitionTime": when(0)},
        {"type": "Ready", "status": "True", "lastTransitionTime": when(3)},
        {"type": "PodScheduled", "status": "True"},
    ]
    last = ended(1, startedAt=when(1), finishedAt=when(2), message="why\n")
    item = pod("d-0", {}, uid="u", restarts=2, last=last, conditions=conditions)
    item["metadata"] |= {"annotations": {INDEX: "0"}, "creationTimestamp": when(0)}
    item["spec"]["nodeName"] = "n1"
    assert parse_pod(item, 1) == PodView(
        name="d-0",
        uid="u",
        node_index=0,
        created=when(0),
        container="node",
        state=NodeState.RUNNING,
        restarts=2,
        trouble=WORDS["DisruptionTarget"],
        message="preempted",
        has_started=True,
        ending_before=ContainerEnd(
            exit_code=1, word="Error", message="why", started=when(1), finished=when(2)
        ),
        started=when(0),
        conditions=(
            (when(5), "disrupted: preempted"),
            (when(1), "placed on n1"),
            (when(0), f"cannot be placed: {UNSCHEDULABLE['message']}"),
        ),
    )


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}}, 4),
        ("TrainJob", {"trainer": {"numNodes": 3}}, 3),
        ("TrainJob", {}, 1),
        ("JobSet", {"replicatedJobs": [{"template": {"spec": {"parallelism": 3}}}] * 2}, 6),
        ("JobSet", {"replicatedJobs": [{"template": {"spec": {}}}]}, 1),
        ("Job", {"parallelism": 3}, 3),
        ("Job", {}, 1),
    ],
)
def test_a_job_asks_for_so_many_pods_or_for_none_while_it_is_suspended(kind, spec, pods):
    assert count_wanted({"kind": kind, "spec": spec}) == pods
    for suspended, said in ((False, {}), (True, {"suspend": True})):
        for one in (said, {"runPolicy": said}):
            assert is_suspended({"kind": kind, "spec": spec | one}) is suspended


@pytest.mark.parametrize(
    ("stamps", "seen_s"),
    [
        ({}, 0.0),
        ({"metadata": {"creationTimestamp": "1970-01-01T00:00:01Z"}}, 1.0),
        ({"firstTimestamp": "1970-01-01T00:00:02Z", "lastTimestamp": None}, 2.0),
        ({"firstTimestamp": "1970-01-01T00:00:02Z", "eventTime": "1970-01-01T00:00:03.5Z"}, 3.5),
    ],
)
def test_an_event_was_seen_when_it_says_so_last(stamps, seen_s):
    assert event_time(stamps) == seen_s


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            '0/1 nodes are available: persistentvolumeclaim "storage" not found.',
            "make the claim storage, as k8s/base/storage.yaml does",
        ),
        ("pod has unbound immediate PersistentVolumeClaims.", "kubectl get pvc,storageclass"),
        ("0/1 nodes are available: 1 Insufficient cpu.", "lower resources of the job"),
    ],
)
def test_a_pod_without_a_place_is_told_what_would_give_it_one(message, fix):
    condition = {**UNSCHEDULABLE, "message": message}
    told = describe_trouble(parse_pod(pod("d-0", {}, phase="Pending", conditions=[condition])))
    assert fix in told
    assert ("lower resources" in told) == ("Insufficient" in message)


def test_every_trouble_is_known_by_its_word_and_has_a_cause_of_its_own_list_and_a_fix():
    assert OOM.word not in WORDS, "a worker's end tells more"
    for trouble in WORDS.values():
        assert WORDS[trouble.word] is trouble
        assert trouble.fix.format(kubectl="kubectl")


ROLE, REPLICA = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"


@pytest.mark.parametrize(
    ("labels", "masters", "index"),
    [
        ({INDEX: "3"}, 0, 3),
        ({ROLE: "worker", REPLICA: "2"}, 0, 2),
        ({ROLE: "worker", REPLICA: "2"}, 1, 3),
        ({ROLE: "master", REPLICA: "0"}, 1, 0),
        ({"app": "other"}, 0, None),
    ],
)
def test_a_pods_labels_tell_which_node_it_is(labels, masters, index):
    assert parse_pod(pod("p", labels), masters).node_index == index


@pytest.mark.parametrize(
    ("kind", "succeeded"),
    [
        ("Succeeded", True), ("Complete", True), ("Completed", True), ("SuccessCriteriaMet", True),
        ("Failed", False), ("FailureTarget", False), ("Running", None), ("Created", None),
    ],
)  # fmt: skip
def test_conditions_of_every_kind_tell_the_end(kind, succeeded):
    item = {"status": {"conditions": [{"type": kind, "status": "True", "reason": "R"}]}}
    end = parse_job_end(item)
    assert (None if end is None else end.exit_code == 0) is succeeded
    assert end is None or end.ended_at == math.inf
    item["status"]["conditions"][0] |= {"lastTransitionTime": "1970-01-01T00:00:02Z"}
    if end := parse_job_end(item):
        assert (end.word, end.words, end.ended_at) == ("R", "" if succeeded else "R", 2.0)
    item["status"]["conditions"][0]["status"] = "False"
    assert parse_job_end(item) is None


FAILED = JobEnd(exit_code=1, word="BackoffLimitExceeded", words="too many")


def test_a_pod_that_was_out_of_memory_says_so():
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=ended(137, "OOMKilled")))
    end = judge_parts(find_parts(FAILED, (view,)))
    assert end.cause is Cause.OUT_OF_MEMORY
    assert "raise resources.memory" in end.detail


@pytest.mark.parametrize(("code", "is_oom"), [(-9, True), (1, False)])
def test_a_kill_for_memory_counts_where_a_worker_of_the_last_attempt_was_killed(code, is_oom):
    message = agents_outcome(at=100.1, message="ended", rank=1, exit_code=code)
    state = ended(1, "OOMKilled", message=message)
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=state))
    assert (view.cause is Cause.OUT_OF_MEMORY) is is_oom


def test_an_agents_own_reason_counts_before_the_exit_code_of_its_pod():
    message = agents_outcome(at=100.1, message="CUDA out of memory", cause="out-of-memory")
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=ended(1, message=message)))
    told = Ending(cause=Cause.OUT_OF_MEMORY, detail="d-0: rank 0: CUDA out of memory")
    assert judge_parts(find_parts(FAILED, (view,))) == told


def test_a_pod_that_was_killed_after_its_workers_were_done_has_not_completed():
    message = agents_outcome(at=100.1, message="", cause="completed", exit_code=0)
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=ended(137, message=message)))
    assert judge_parts(find_parts(FAILED, (view,))).cause is Cause.KILLED


def test_a_pod_that_was_ended_because_its_job_had_failed_does_not_say_why():
    at = seconds_of("2026-01-01T00:00:10Z")
    end = JobEnd(exit_code=1, words="a limit", ended_at=at)

    def last(code: int, finished: str, message: str = "") -> Any:
        return ended(code, finishedAt=f"2026-01-01T00:00:{finished}Z", message=message)

    killed = parse_pod(pod("w-0", {INDEX: "1"}, phase="Failed", state=last(143, "11")))
    assert judge_parts(find_parts(end, (killed,))) == Ending(
        cause=Cause.TRAINING_FAILED, detail="a limit"
    )
    before = parse_pod(pod("w-0", {INDEX: "1"}, phase="Failed", state=last(143, "09")))
    assert judge_parts(find_parts(end, (before,))).cause is Cause.PREEMPTED
    # Its container had failed in place before.
    failed = last(2, "08", "unrecognized arguments: --bad")
    for state in (last(143, "11"), {"waiting": {"reason": "CrashLoopBackOff"}}):
        view = parse_pod(pod("m-0", {INDEX: "0"}, state=state, last=failed, restarts=2))
        told = judge_parts(find_parts(end, (killed, view)))
        assert told == Ending(cause=Cause.BAD_INPUT, detail="m-0: unrecognized arguments: --bad")


@pytest.mark.parametrize(
    ("kind", "reason", "message", "told"),
    [
        ("Complete", "CompletionsReached", "all pods", "completed: "),
        ("Failed", "BackoffLimitExceeded", "too many", "training-failed: too many"),
        ("Failed", "PyTorchJobFailed", "", "training-failed: PyTorchJobFailed"),
        ("Failed", "DeadlineExceeded", "longer than 9 s", "killed: longer than 9 s"),
    ],
)
def test_where_no_pod_says_why_the_job_does(kind, reason, message, told):
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    end = parse_job_end({"status": {"conditions": [condition]}})
    well = parse_pod(pod("d-0", {INDEX: "0"}, phase="Succeeded", state=ended(0)))
    judged = judge_parts(find_parts(end, [well]))
    assert f"{judged.cause}: {judged.detail}" == told


def test_pods_that_a_job_ends_before_it_calls_itself_failed_do_not_say_why():
    told = {"status": "True", "reason": "DeadlineExceeded", "message": "longer than 9 s"}
    at = "2026-01-01T00:00:{}Z"
    conditions = [
        {**told, "type": "FailureTarget", "lastTransitionTime": at.format("09")},
        {**told, "type": "Failed", "lastTransitionTime": at.format("40")},
    ]
    state = ended(143, finishedAt=at.format("39"))
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=state))
    end = parse_job_end({"status": {"conditions": conditions}})
    judged = judge_parts(find_parts(end, [view]))
    assert f"{judged.cause}: {judged.detail}" == "killed: longer than 9 s"


def test_the_termination_message_comes_home():
    state = ended(1, message="Traceback\nValueError: no such file\n")
    view = parse_pod(pod("d-0", {INDEX: "0"}, phase="Failed", state=state))
    assert judge_parts(find_parts(FAILED, (view,))).detail == "d-0: ValueError: no such file"
