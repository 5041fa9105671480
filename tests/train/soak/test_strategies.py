"""The rows of strategies that ``make claims`` leaves out."""

import pytest

from tests.train.claims import test_strategies as claims
from tests.train.claims.test_strategies import named, trainings
from tests.train.strategy_rows import ROWS

LOSSES = [given for given in claims.LOSSES if given not in claims.QUICK_LOSSES]
PAIRS = [given for given in claims.PAIRS if given not in claims.QUICK_PAIRS]
REST = [(row,) for row in ROWS if (row,) not in claims.QUICK_ROWS]


@pytest.mark.parametrize(("row", "world"), named(LOSSES))
def test_losses_and_scores_are_those_of_one_process(trainings, row, world):
    claims.test_losses_and_scores_are_those_of_one_process(trainings, row, world)


@pytest.mark.parametrize(("saver", "loader"), named(PAIRS))
def test_what_one_saves_another_loads_in_another_world(trainings, tmp_path, saver, loader):
    claims.test_what_one_saves_another_loads_in_another_world_or_says_why_not(
        trainings, tmp_path, saver, loader
    )


@pytest.mark.parametrize("row", named(REST))
def test_a_worker_killed_in_the_middle_of_a_step_leaves_no_trace(trainings, tmp_path, row):
    claims.test_a_worker_killed_in_the_middle_of_a_step_leaves_no_trace_in_the_losses(
        trainings, tmp_path, row
    )


@pytest.mark.parametrize("row", named(REST))
def test_a_stop_commits_first_and_the_next_start_goes_on(trainings, tmp_path, row):
    claims.test_a_stop_commits_first_and_the_next_start_goes_on_from_there(trainings, tmp_path, row)
