"""The healing benchmark: what it reads out of the steps that the workers tell."""

import pytest

from benchmarks.groups import parse_collectives
from benchmarks.healing import Recovery, find_recovery
from benchmarks.measure import BenchmarkError

BEFORE = "1.0 2 0 10 40\n1.0 2 1 11 40\n2.0 2 1 11 41\n"
"""Process 11 is killed at 2.5; it has made a step that the other one has not."""


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("", None),
        # The last step of the old world ends after the kill.
        ("2.6 2 0 10 41\n", None),
        ("2.6 2 0 10 41\n2.9 1 0 10 42\n", Recovery(seconds=pytest.approx(0.4), again=0)),
        ("2.75 1 0 10 41\n", Recovery(seconds=0.25, again=0)),
        # A new process that goes on from a checkpoint.
        ("8.0 1 0 12 39\n8.1 1 0 12 40\n", None),
        ("8.0 1 0 12 39\n8.1 1 0 12 40\n8.5 1 0 12 41\n", Recovery(seconds=6.0, again=2)),
    ],
)
def test_the_first_new_step_and_those_made_again_are_found(after, found):
    assert find_recovery(parse_collectives(BEFORE + after), 2.5, 1, frozenset({11})) == found


def test_a_step_that_was_left_out_is_no_recovery():
    told = parse_collectives(BEFORE + "2.6 1 0 10 42\n")
    with pytest.raises(BenchmarkError, match="after step 40 came step 42"):
        find_recovery(told, 2.5, 1, frozenset({11}))
