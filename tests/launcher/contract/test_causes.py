"""Reasons and exit codes are a contract with people and schedulers: a row of the page each."""

import re
from pathlib import Path

import pytest

from launcher.contract.causes import OF_RUNS, OVER, RETRY_FROM, Cause, RunState, cause_of_exit_code
from launcher.contract.errors import ExitCode

PAGE = Path(__file__).parents[3] / "docs" / "exit-codes.md"
ROWS = re.findall(r"^\| (\d+) \| (\w*) \| `(.+?)` \| (\w+) \| (\w*) \|", PAGE.read_text(), re.M)


@pytest.mark.parametrize(("code", "retry", "value", "state", "fault"), ROWS)
def test_each_row_of_the_table_is_what_a_reason_means(code, retry, value, state, fault):
    reason = Cause(value)
    assert reason.exit_code == int(code)
    assert (reason.state, reason.run_end.whose) == (state, fault)
    assert retry == ("" if code == "0" else "yes" if int(code) >= RETRY_FROM else "no")
    assert repr(reason) == f"'{value}'"


def test_every_reason_has_a_row_and_every_code_a_reason():
    assert [row[2] for row in ROWS] == [str(reason) for reason in sorted(OF_RUNS, key=order)]
    assert {int(row[0]) for row in ROWS} == set(ExitCode)
    assert {*RunState} - {RunState.RUNNING} == OVER


def test_each_row_has_as_many_cells_as_its_table():
    """As of a fix with a pipe in it."""
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.M):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def order(reason: Cause) -> tuple[int, int]:
    return reason.exit_code, [*Cause].index(reason)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "completed"), (1, "training-failed"), (2, "bad-input"), (3, "target-unreachable"),
        (4, "training-failed"), (127, "training-failed"), (128, "training-failed"),
        (129, "killed"), (130, "interrupted"), (137, "killed"), (139, "killed"),
        (143, "preempted"), (193, "rendezvous-unreachable"), (194, "rendezvous-closed"),
        (195, "store-lost"), (196, "agent-failed"), (197, "gpu-busy"), (198, "disk-full"),
        (255, "killed"),
    ],
)  # fmt: skip
def test_a_code_alone_tells_no_more_than_it_can(code, reason):
    assert cause_of_exit_code(code) == reason
