"""Why a run ended, from what its driver saw, its nodes said and its first worker wrote."""

from dataclasses import replace

import pytest

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, NodeOutcome
from launcher.follow.endings import (
    FOUND_LATER,
    Part,
    decide_parts,
    judge_found,
    judge_parts,
    judge_run,
)
from tests.launcher.worker_ends import worker_end

SEEN = Ending(cause=Cause.TRAINING_FAILED, detail="as seen")
FIRST = worker_end(3, node_index=1, log="rank-3/stderr")


def node(index: int, cause: Cause, detail: str, at: float = 1.0) -> NodeOutcome:
    return NodeOutcome(
        node_index=index, incarnation=0, cause=cause, detail=detail, started_at=0.0,
        finished_at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "nodes", "cause", "detail"),
    [
        ("training-failed", [], "training-failed", "as seen"),
        ("training-failed", [node(0, Cause.OUT_OF_MEMORY, "x")], "out-of-memory", "as seen"),
        ("training-failed", [node(0, Cause.NODE_LOST, "x")], "training-failed", "as seen"),
        ("training-failed",
         [node(0, Cause.OUT_OF_MEMORY, "x"), node(1, Cause.RESTARTS_EXHAUSTED, "y", 2.0)],
         "restarts-exhausted", "as seen"),
        ("training-failed",
         [node(0, Cause.OUT_OF_MEMORY, "x", 2.0), node(2, Cause.RESTARTS_EXHAUSTED, "y")],
         "restarts-exhausted", "as seen"),
        ("out-of-memory", [node(0, Cause.TRAINING_FAILED, "x")], "out-of-memory", "as seen"),
        ("restarts-exhausted", [node(0, Cause.OUT_OF_MEMORY, "x")],
         "restarts-exhausted", "as seen"),
        ("disk-full", [node(2, Cause.DISK_FULL, "/x is full")], "disk-full", "node 2: /x is full"),
        ("training-failed", [node(0, Cause.RESTARTS_EXHAUSTED, protocol.OTHERS_GO_ON)],
         "training-failed", "as seen"),
    ],
)  # fmt: skip
def test_a_node_with_the_same_exit_code_knows_the_cause(seen, nodes, cause, detail):
    for first in (FIRST, None) if len(nodes) < 2 else (FIRST,):
        told = judge_run(replace(SEEN, cause=Cause(seen)), nodes, first)
        assert (told.cause, told.detail) == (cause, detail)
    silent = judge_run(replace(SEEN, detail=""), [node(0, Cause.OUT_OF_MEMORY, "x")], None)
    assert silent.detail == "x"


@pytest.mark.parametrize(
    ("exit_code", "last", "log", "told"),
    [
        (2, "t.py: no --foo", "rank-3/stderr", "rank 3: t.py: no --foo"),
        (2, "", "rank-3/stderr", ""),
        (2, "epoch 1", "rank-3/stdout", ""),
        (1, "epoch 1", "rank-3/stderr", None),
        (3, "epoch 1", "rank-3/stderr", None),
        (1, "/venv/python: No module named trai", "x", "rank 3: No module named trai"),
        (1, "said: No module named trai", "x", None),
        (1, "/venv/python: No module named trai; or", "x", None),
        (1, "/venv/python: Error while finding module specification for 'a.b' "
         "(ModuleNotFoundError: No module named 'a')", "x", "rank 3: No module named 'a'"),
        (1, "/venv/python: Error while finding module specification for 'a.b'", "x",
         "rank 3: Error while finding module specification for 'a.b'"),
    ],
)  # fmt: skip
def test_what_the_user_has_to_correct_is_bad_input(exit_code, last, log, told):
    first = replace(FIRST, exit_code=exit_code, log=log, log_tail=("usage", last) if last else ())
    end = judge_run(SEEN, (), first)
    expected = (SEEN.cause, SEEN.detail) if told is None else (Cause.BAD_INPUT, told)
    assert (end.cause, end.detail) == expected
    lost = replace(SEEN, cause=Cause.NODE_LOST)
    assert judge_run(lost, (), first) == lost


def told(cause: Cause, exception: str = "", failed_at: float = 1.0) -> NodeOutcome:
    first = worker_end(0, exception, failed_at=failed_at) if exception else None
    return NodeOutcome(node_index=0, incarnation=0, cause=cause, first=first)


BOOM, PEER = "ValueError: boom", "RuntimeError: Connection closed by peer"
KILLED = Part(words="killed", exit_code=137, ended_at=1.0)
RAISED = Part(words="raised", exit_code=1, ended_at=2.0)
FELL = Part(words="fell", exit_code=1, outcome=told(Cause.TRAINING_FAILED, PEER, 1.0))
BEGAN = Part(words="began", exit_code=1, outcome=told(Cause.TRAINING_FAILED, BOOM, 3.0))
NO_MEMORY = Part(words="memory", exit_code=1, outcome=told(Cause.OUT_OF_MEMORY), ended_at=9.0)
WELL = Part(words="well", exit_code=0, ended_at=0.0)


@pytest.mark.parametrize(
    ("parts", "cause", "words"),
    [
        ([WELL], "completed", "well"),
        ([WELL, KILLED], "killed", "killed"),
        ([KILLED, RAISED], "training-failed", "raised"),
        ([replace(RAISED, words="late", ended_at=3.0), RAISED], "training-failed", "raised"),
        ([FELL, BEGAN], "training-failed", "began"),
        ([BEGAN, KILLED, NO_MEMORY], "out-of-memory", "memory"),
        # As its agent told, but what was killed after it had reported success is not done.
        ([replace(KILLED, outcome=told(Cause.TRAINING_FAILED))], "training-failed", "killed"),
        ([replace(KILLED, outcome=told(Cause.COMPLETED))], "killed", "killed"),
        # As the scheduler, or who asked for the end, names it.
        ([replace(RAISED, cause=Cause.STOP_REQUESTED)], "stop-requested", "raised"),
        ([replace(WELL, cause=Cause.PREEMPTED)], "preempted", "well"),
        ([replace(WELL, cause=Cause.TIME_LIMIT)], "preempted", "well"),
        ([Part(words="no image", cause=Cause.IMAGE_PULL)], "bad-input", "no image"),
        ([Part(words="gone")], "node-lost", "gone"),
    ],
)
def test_of_all_parts_of_a_run_the_one_that_says_why_is_told(parts, cause, words):
    end = judge_parts(parts)
    assert (end.cause, end.detail) == (cause, words)


@pytest.mark.parametrize(
    ("over", "going", "cause"),
    [
        ([], 2, None),
        ([RAISED], 2, "training-failed"),
        ([KILLED], 2, None),
        ([WELL], 1, None),
        ([KILLED], 1, "killed"),
        ([WELL], 0, "completed"),
    ],
)
def test_a_run_ends_once_too_few_of_its_parts_go_on_or_one_would_fail_again(over, going, cause):
    end = decide_parts([], over, still_running=going, min_nodes=2)
    assert (end and end.cause) == cause
    assert (
        decide_parts([told(Cause.COMPLETED)], over, still_running=2, min_nodes=2).cause
        == "completed"
    )
    left = replace(told(Cause.COMPLETED), detail=protocol.OTHERS_GO_ON)
    assert decide_parts([left], over, still_running=going, min_nodes=2) == end


def test_a_run_that_was_asked_to_stop_is_not_told_as_one_that_lost_its_launcher():
    lost = Ending(cause=Cause.LAUNCHER_LOST, detail="its launcher died")
    assert judge_found(lost, is_stop_requested=True).cause is Cause.STOP_REQUESTED
    assert judge_found(lost, is_stop_requested=False) == lost
    assert judge_found(Ending(cause=Cause.COMPLETED), is_stop_requested=True).detail == FOUND_LATER
