"""``launcher compare``: real trainings with 1 and 2 processes, and what makes them differ."""

import re

import pytest

from tests.launcher.commands.claims import test_compare as claims
from tests.launcher.commands.claims.test_compare import COMPARE, launcher


@pytest.mark.parametrize("cause", claims.ELSEWHERE)
def test_what_makes_two_worlds_differ_is_named(launcher, cause):
    claims.test_what_makes_two_worlds_differ_is_named(launcher, cause)


def test_one_that_fails_is_told_and_the_others_are_compared(launcher):
    done = launcher(*COMPARE, "1,2,1", "--", "one fails")
    assert done.returncode == 1
    failed = r"nproc_per_node 2: tiny-\w+: failed, training-failed\n  fix: .* why"
    assert re.search(failed, done.stderr)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["nproc_per_node", "1"]


def test_a_script_without_a_ledger_is_told_what_is_missing(launcher):
    launcher.write("print('trains')\n")
    told = launcher.fails(1, *COMPARE, "1,2")
    assert told.count("has no training ledger with its steps") == 2
