"""The verdict on each open fault of the corpus, with what it rests on."""

from pathlib import Path

import pytest

from launcher.api.why import read_path
from launcher.verdict.verdict import Verdict, decide_verdict
from tests.faults.corpus import Fault, read_faults

FAULTS = read_faults("open")
KINDS = sorted({fault.made for fault in FAULTS})
MOST_CHARACTERS = 90
"""Shown of what happened."""


def is_right(fault: Fault, told: Verdict) -> bool:
    is_there = fault.node in ("any", told.node)
    return told.cause.value in (fault.cause, *fault.also) and is_there


def tell(fault: Fault, told: Verdict, recordings: Path) -> str:
    """A verdict in one line: its evidence by the numbers of lines, the heaviest first."""
    what = told.what if len(told.what) <= MOST_CHARACTERS else f"{told.what[:MOST_CHARACTERS]}..."
    numbers = [str(line.number) for line in told.evidence]
    parts = [
        f"{fault.name}: {told.cause}, {told.certainty or 'none'}: {what}",
        told.where,
        f"fell {' '.join(map(str, told.fell))}" if told.fell else "",
        f"not read {'; '.join(told.missing)}" if told.missing else "",
        f"fix {told.fix}" if told.fix != told.cause.fix else "",
        f"lines {' '.join(numbers)}",
    ]
    return " | ".join(filter(None, parts)).replace(str(recordings), "") + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_each_verdict_has_the_cause_and_the_node_of_its_fault(kind, expect_golden):
    faults = [fault for fault in FAULTS if fault.made == kind]
    told = [(fault, decide_verdict(read_path(fault.recording))) for fault in faults]
    assert [fault.name for fault, verdict in told if not is_right(fault, verdict)] == []
    lines = (tell(fault, verdict, fault.recording.parent) for fault, verdict in told)
    expect_golden(f"verdicts/{kind}.txt", "".join(lines))
