"""What is told of pods while a run goes on, and when waiting for them is over."""

from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.follow.endings import judge_part
from launcher.targets.kubernetes.api.refusals import find_fix, is_for_good
from launcher.targets.kubernetes.pods.progress import (
    PodProgress,
    StartLimit,
    same_words,
    tell_reasons,
)
from launcher.targets.kubernetes.pods.states import WORDS, PodView, parse_pod
from tests.launcher.fake_cluster import ended, pod

INDEX = "batch.kubernetes.io/job-completion-index"
NOT_FOUND = ended(128, "StartError", message='exec: "python3": not found, task 0a1b2c3d4e5f')
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
NO_CLAIM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": '0/3 nodes are available: persistentvolumeclaim "none" not found.',
}
NO_ROOM = {**NO_CLAIM, "message": "0/3 nodes are available: 3 Insufficient cpu."}


def view(index: int = 0, uid: str = "a", **fields: Any) -> PodView:
    return parse_pod(pod(f"d-{index}-{uid}", {INDEX: str(index)}, uid=uid, **fields))


def waits(state: Any, index: int = 0, uid: str = "a") -> PodView:
    return view(index, uid, phase="Pending", state=state)


def failed_start(uid: str, **fields: Any) -> PodView:
    return view(0, uid, phase="Failed", state=NOT_FOUND, **fields)


# -- the limit ------------------------------------------------------------------------------------


def test_one_failure_to_start_is_none_and_a_second_equal_one_ends_the_run():
    limit = StartLimit(600, min_nodes=1)
    assert limit.find([failed_start("a")], 0.0) is None
    found = limit.find([failed_start("a"), failed_start("b")], 100.0)
    assert judge_part(found).cause is Cause.BAD_INPUT


def test_failures_to_start_for_different_reasons_are_not_equal():
    limit = StartLimit(600, min_nodes=1)
    other = view(0, "b", phase="Failed", state=ended(128, "StartError", message="mount: denied"))
    assert limit.find([failed_start("a"), other], 0.0) is None


def test_containers_of_one_pod_count_each():
    limit = StartLimit(600, min_nodes=1)
    again = failed_start("a", restarts=1, last=NOT_FOUND)
    found = limit.find([again], 0.0)
    assert found.words.startswith("d-0-a: StartError, 2 times: exec: ")
    assert found.words.endswith(f"; {WORDS['StartError'].fix}")
    limit = StartLimit(600, min_nodes=1)
    # The node ran in another pod: what had failed by then is no reason to end.
    assert limit.find([failed_start("a"), view(uid="z")], 0.0) is None
    later = view(0, "a", state={"waiting": {}}, restarts=1, last=NOT_FOUND, phase="Pending")
    assert limit.find([later, failed_start("b")], 1.0) is None


def test_a_pod_that_is_refused_for_good_ends_the_run_after_the_limit_too():
    limit = StartLimit(60, min_nodes=1)
    assert limit.find([], 5.0, refused="no account") is None
    assert limit.find([], 64.5, refused="no account") is None
    found = limit.find([], 65.0, refused="no account")
    assert found.words == "no account; it lasted 60 s (kubernetes.start_limit_s)"
    assert found.cause is Cause.NOT_ALLOWED
    blocked = StartLimit(60, min_nodes=1)
    assert blocked.find([waits(NO_IMAGE)], 0.0) is None
    assert blocked.find([waits(NO_IMAGE)], 60.0).cause is Cause.IMAGE_PULL


def test_failures_to_start_before_the_job_ran_after_all_end_nothing_later():
    limit = StartLimit(600, min_nodes=1)
    seen = [failed_start("a"), failed_start("b")]
    assert limit.find([*seen, view(0, "c")], 0.0) is None
    lost = [*seen, view(0, "c", phase="Failed", state=ended(137))]
    for now in (1.0, 1000.0):
        assert limit.find(lost, now) is None


@pytest.mark.parametrize(
    ("fields", "is_ended"),
    [
        ({"state": NO_IMAGE}, True),
        ({"state": {"waiting": {"reason": "CreateContainerConfigError"}}}, True),
        ({"state": {}, "conditions": [NO_CLAIM]}, True),
        ({"state": {}, "conditions": [NO_ROOM]}, False),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, False),
    ],
)
def test_what_only_a_person_can_change_ends_the_run_after_the_limit(fields, is_ended):
    limit = StartLimit(60, min_nodes=1)
    one = view(phase="Pending", **fields)
    assert limit.find([one], 0.0) is None
    assert limit.find([one], 59.0) is None
    assert (limit.find([one], 60.0) is not None) is is_ended


def test_a_pod_that_starts_after_all_begins_a_new_wait():
    limit = StartLimit(60, min_nodes=2)
    limit.find([waits(NO_IMAGE)], 0.0)
    limit.find([view()], 59.0)
    assert limit.find([waits(NO_IMAGE)], 61.0) is None
    assert limit.find([waits(NO_IMAGE)], 121.0) is not None


def test_a_new_pod_in_the_place_of_one_that_waited_does_not_begin_a_new_wait():
    limit = StartLimit(60, min_nodes=1)
    limit.find([waits(NO_IMAGE)], 0.0)
    assert limit.find([waits(NO_IMAGE, uid="b")], 60.0) is not None


def test_enough_nodes_that_train_end_no_run_and_zero_is_no_limit():
    blocked = [view(0, "a"), waits(NO_IMAGE, index=1, uid="b")]
    for limit in (StartLimit(60, min_nodes=1), StartLimit(0, min_nodes=2)):
        assert limit.find(blocked, 0.0) is None
        assert limit.find(blocked, 1e6) is None


# -- notes ----------------------------------------------------------------------------------------


def test_a_pod_is_told_when_it_changes_and_a_trouble_with_its_limit():
    notes = PodProgress(600)
    assert [*notes.describe_changes((view(phase="Pending", state={}),))] == ["d-0-a is starting"]
    init = {"name": "init-pytorch", "state": {"running": {"startedAt": "t"}}}
    waiting = view(phase="Pending", state={}, initContainerStatuses=[init])
    told = "d-0-a is starting: its init container init-pytorch runs"
    assert [*notes.describe_changes((waiting,))] == [told]
    assert [*notes.describe_changes((view(),))] == ["d-0-a runs"]
    assert [*notes.describe_changes((view(),))] == []
    crashed = view(state={"waiting": {"reason": "CrashLoopBackOff"}}, restarts=1)
    (told,) = notes.describe_changes((crashed,))
    assert told.startswith("d-0-a: CrashLoopBackOff")
    assert "the run ends" not in told
    (told,) = PodProgress(600).describe_changes((waits(NO_IMAGE),))
    assert told.endswith("the run ends if this lasts 600 s (kubernetes.start_limit_s)")


def test_a_trouble_is_told_once_for_a_pod_whatever_its_words_are_later():
    notes = PodProgress(0)

    def tell(reason: str, message: str) -> list[str]:
        state = {"waiting": {"reason": reason, "message": message}}
        return [*notes.describe_changes((waits(state), waits(state, index=1, uid="b")))]

    told = tell("ErrImagePull", "no such host")
    assert told[0].startswith("d-0-a: ImagePullBackOff: no such host; make push IMAGE")
    assert told[1].startswith("d-1-b: ImagePullBackOff: no such host; make push IMAGE")
    assert tell("ImagePullBackOff", "Back-off pulling image") == []
    assert tell("ErrImagePull", "no such host, 2nd try") == []


DRAINED = [{"type": "DisruptionTarget", "status": "True", "message": "drained"}]


@pytest.mark.parametrize(
    ("lost", "there", "nodes", "told"),
    [
        (view(), False, 2, "node 0 is lost with its pod d-0-a; the others go on"),
        (view(phase="Failed", state=ended(137)), True, 2, "the others go on"),
        (view(conditions=DRAINED), True, 2, "the others go on"),
        (view(), False, 3, "the others wait for its next pod"),
        (view(), True, 2, ""),
        # Neither were lost: one has failed, one had not begun, one was withdrawn.
        (view(phase="Failed", state=ended(1)), False, 2, ""),
        (waits(NO_IMAGE), False, 2, ""),
        (view(index=9), False, 2, ""),
    ],
    ids=["gone", "killed", "drained", "too few", "there", "failed", "not begun", "withdrawn"],
)
def test_a_node_that_is_lost_is_told_once_with_what_the_others_do(lost, there, nodes, told):
    notes, other, wanted = PodProgress(600), view(index=1, uid="b"), frozenset({0, 1, 2})
    left = (other, lost) if there else (other,)
    said = [*notes.describe_losses((lost, other), left, wanted, nodes - 1)]
    assert "".join(said).endswith(told)
    assert len(said) == bool(told)
    assert [*notes.describe_losses((lost, other), left, wanted, nodes - 1)] == []


def test_messages_that_differ_by_names_and_numbers_alone_are_the_same():
    one = 'pods "d-0-x7k2p" is forbidden: used: pods=3'
    assert same_words(one) == same_words('pods "d-1-aaaaa" is forbidden: used: pods=14')
    assert same_words(one) != same_words("no such image")


# -- news -----------------------------------------------------------------------------------------

JOB = {"kind": "Job", "metadata": {"name": "d", "creationTimestamp": "2026-01-01T00:00:10Z"}}


def event(message: str, at: str = "2026-01-01T00:00:20Z", **fields: Any) -> dict[str, Any]:
    about = {"kind": "Job", "name": "d"}
    given = {"type": "Warning", "reason": "FailedCreate", "message": message}
    return {"involvedObject": about, "lastTimestamp": at, **given, **fields}


def test_warnings_are_told_once_each_with_a_fix_and_ordinary_events_are_not():
    events = [
        event('pods "a" is forbidden: exceeded quota: q'),
        event('pods "b" is forbidden: exceeded quota: q'),
        event("made", type="Normal"),
        event("of an earlier job", at="2026-01-01T00:00:01Z"),
        event("later", at="", eventTime="2026-01-01T00:00:30.123456Z"),
        event("in a series", series={"lastObservedTime": "2026-01-01T00:00:40.1Z"}),
    ]
    assert tell_reasons(JOB, events, "team") == (
        'Job d: FailedCreate: pods "b" is forbidden: exceeded quota: q; '
        "kubectl describe quota -n team; then resources: of the job",
        "Job d: FailedCreate: later; kubectl describe job d -n team",
        "Job d: FailedCreate: in a series; kubectl describe job d -n team",
    )


def test_conditions_that_are_true_and_no_end_are_told():
    conditions = [
        {"type": "Suspended", "status": "True", "message": "Job suspended"},
        {"type": "Created", "status": "True", "message": "created"},
        {"type": "Failed", "status": "False", "message": "no"},
    ]
    job = {**JOB, "status": {"conditions": conditions}}
    assert tell_reasons(job, [], "team") == ("Job d: Suspended: Job suspended",)
    told = tell_reasons(job, [], "team", way="resume it: X")
    assert told == ("Job d: Suspended: Job suspended; resume it: X",)


@pytest.mark.parametrize(
    ("message", "lasts", "fix"),
    [
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest"',
            True,
            "take out of the",
        ),
        (
            'Pod "x" is invalid: maximum memory usage per Container is 1Gi',
            True,
            "kubectl describe limits -n team",
        ),
        (
            'pods "x" is forbidden: error looking up service account team/default: serviceaccount '
            '"default" not found',
            True,
            "kubectl create serviceaccount default -n team",
        ),
        ('pods "x" is forbidden: exceeded quota: q', False, "kubectl describe quota -n team; "),
        ('admission webhook "w" denied the request: pods is forbidden: x', False, ""),
        ('pods "x" is forbidden: status unknown for quota: q, resources: pods', False, ""),
        ("something else", False, ""),
    ],
)
def test_what_refuses_a_pod_has_a_fix_and_lasts_unless_it_passes_by_itself(message, lasts, fix):
    assert is_for_good(message) is lasts
    assert find_fix(message, "team").startswith(fix)
    assert bool(find_fix(message, "team")) == bool(fix)
