"""What is told of an ending where the worker that failed first is not shown beside it."""

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, NodeOutcome
from tests.launcher.worker_ends import worker_end

BOOM = worker_end(1, "ValueError: boom")
FULL = worker_end(1, "OSError: no space", cause="disk-full")


@pytest.mark.parametrize(
    ("cause", "detail", "first", "told"),
    [
        ("training-failed", "", BOOM, "rank 1: exit code 1 (ValueError: boom)"),
        ("restarts-exhausted", "all are used up", BOOM,
         "all are used up; last: rank 1: exit code 1 (ValueError: boom)"),
        ("restarts-exhausted", "last: rank 1: it hung", BOOM, "last: rank 1: it hung"),
        ("restarts-exhausted", "all are used up", None, "all are used up"),
        # Where the worker is not why.
        ("preempted", "the agent got SIGTERM (15)", BOOM, "the agent got SIGTERM (15)"),
        ("disk-full", "/x is full", BOOM, "/x is full"),
        ("disk-full", "/x is full", FULL,
         "/x is full; last: rank 1: exit code 1 (OSError: no space)"),
    ],
)  # fmt: skip
def test_an_ending_is_told_with_the_worker_that_is_why(cause, detail, first, told):
    assert Ending(cause=Cause(cause), detail=detail).summarize(first) == told
    node = NodeOutcome(node_index=0, incarnation=0, cause=Cause(cause), detail=detail, first=first)
    assert node.summary == told
    if first:
        cut = node.to_short_json(300)
        assert told in cut
