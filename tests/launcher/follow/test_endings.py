"""Why a run ended, from what its driver saw, its nodes said and its first worker wrote."""

from dataclasses import replace

import pytest

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, NodeOutcome
from launcher.follow.endings import judge_run
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
        (2, "", "rank-3/stderr", "rank 3: exit code 2"),
        (2, "epoch 1", "rank-3/stdout", "rank 3: exit code 2"),
        (1, "epoch 1", "rank-3/stderr", ""),
        (3, "epoch 1", "rank-3/stderr", ""),
        (1, "/venv/python: No module named trai", "x", "rank 3: No module named trai"),
        (1, "said: No module named trai", "x", ""),
        (1, "/venv/python: No module named trai; or", "x", ""),
        (1, "/venv/python: Error while finding module specification for 'a.b'", "x",
         "rank 3: Error while finding module specification for 'a.b'"),
    ],
)  # fmt: skip
def test_what_the_user_has_to_correct_is_bad_input(exit_code, last, log, told):
    first = replace(FIRST, exit_code=exit_code, log=log, log_tail=("usage", last) if last else ())
    end = judge_run(SEEN, (), first)
    expected = (Cause.BAD_INPUT, told) if told else (SEEN.cause, SEEN.detail)
    assert (end.cause, end.detail) == expected
    lost = replace(SEEN, cause=Cause.NODE_LOST)
    assert judge_run(lost, (), first) == lost
