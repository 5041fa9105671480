"""How workers, nodes and runs ended, and what is shown of it."""

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import (
    ENDED_BY_AGENT,
    LINE_CHARACTERS,
    Ending,
    NodeOutcome,
    cause_of_ending,
    describe,
    is_out_of_memory,
    is_own_failure,
    last_of,
    name_end,
    show_line,
    show_text,
    sort_ends,
)
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
        assert node.to_short_json(4096) == node.to_json()
        cut = node.to_short_json(300)
        assert told in cut


PEER = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("end", "place", "what", "how"),
    [
        (worker_end(3, "ValueError: x"), "rank 3 on node 0", "ValueError: x", "exit code 1"),
        (worker_end(3, "a", node_index=2, host="g1"), "rank 3 on node 2 (g1)", "a", "exit code 1"),
        (worker_end(0, "a\nb"), "rank 0 on node 0", "a", "exit code 1"),
        (worker_end(0, "exit code 1"), "rank 0 on node 0", "exit code 1", "exit code 1"),
        (worker_end(0, "x" * 300), "rank 0 on node 0", "x" * 200, "exit code 1"),
        (worker_end(exit_code=-11, cause="signal"), "rank 0 on node 0", "", "SIGSEGV (11)"),
        (worker_end(exit_code=-9, cause="hang"), "rank 0 on node 0", "", "it hung"),
        (worker_end(exit_code=0, cause="exited-early"), "rank 0 on node 0", "", "exit code 0"),
        (worker_end(cause="out-of-memory"), "rank 0 on node 0", "", "out of memory"),
    ],
)
def test_an_end_in_words(end, place, what, how):
    assert (end.place, end.headline, name_end(end)) == (place, f"{place}: {what}", how)
    assert repr(end) == f"<WorkerEnd {end.headline}>"
    exception = f" ({end.exception})" if end.exception not in ("", how) else ""
    assert describe(end) == f"rank {end.rank}: {how}{exception}"


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ((), ""),
        (("a", "b"), "b"),
        (("a", "", "  ", "  indented", "UserWarning: old"), "a"),
        (("x.py:3: FutureWarning: a",), ""),
    ],
)
def test_the_last_words_are_a_lines_own(lines, last):
    assert last_of(lines) == last
    assert worker_end(log="/r/stderr", log_tail=lines).last_words == last
    assert worker_end(log="/r/stdout", log_tail=lines).last_words == ""


def test_causes_come_before_what_fell_with_them():
    in_order = (
        worker_end(5, "ValueError", failed_at=1.0),
        worker_end(2, "ValueError", failed_at=2.0),
        worker_end(7, "ValueError", failed_at=2.0),
        worker_end(1, PEER, failed_at=0.5),
        worker_end(3, "ValueError: 1", cause="terminated", exit_code=-15, failed_at=0.3),
        worker_end(0, "", cause="terminated", exit_code=-15, failed_at=0.1),
        worker_end(4, ENDED_BY_AGENT, cause="terminated", exit_code=-15, failed_at=0.2),
    )
    assert sort_ends(reversed(in_order)) == in_order
    assert [end.is_collateral for end in in_order] == [False] * 3 + [True] * 4


@pytest.mark.parametrize("code", [0, 1, 128, 130, 137, 143, -15])
def test_who_was_asked_to_leave_has_left(code):
    assert worker_end(exit_code=code).has_left == (code in (130, 143))


@pytest.mark.parametrize(
    ("exception", "own"),
    [("", False), ("ValueError: x", True), (PEER, False), ("lightning.SIGTERMException", False)],
)
def test_an_own_failure_is_about_nobody_else(exception, own):
    assert is_own_failure(exception) is own


@pytest.mark.parametrize(
    ("codes", "killed", "expected"),
    [((), True, True), ((), False, False), ((1, -9), True, True), ((1, -9), False, False),
     ((1, -15), True, False), ((0,), True, False)],
)  # fmt: skip
def test_only_what_was_killed_ran_out_of_memory(codes, killed, expected):
    assert is_out_of_memory(codes, oom_killed=killed) == expected


@pytest.mark.parametrize(
    ("code", "cause"),
    [(1, "script-error"), (0, "completed"), (-9, "killed"), (-11, "crashed")],
)
def test_a_code_says_how_a_process_ended(code, cause):
    assert cause_of_ending(code) == cause


def test_a_terminal_gets_what_it_can_show():
    assert show_line("\x1b[31mred\x1b[0m\ta\x07") == "red    a\\x07"
    assert show_text("é\tb\nc\x00") == "é\tb\nc\\x00"
    longest = "y" * LINE_CHARACTERS
    assert show_line(longest) == longest
    assert show_line(f"{longest}y") == f"{longest}..."
    coloured = "\x1b[1m" * 100 + "z" * 3 * LINE_CHARACTERS
    assert show_line(coloured) == "z" * LINE_CHARACTERS + "..."
    assert LINE_CHARACTERS == 500
