from __future__ import annotations

import pytest

from fabric_train.lineage import Commit, Start, Writer
from fabric_train.retention import (
    MTBF_BEFORE_FAILURES_S,
    Interval,
    Keep,
    Scored,
    Timer,
    decide_removals,
    observe_mtbf_s,
    young_interval_s,
)
from tests.waiting import StoppedClock

WRITER = Writer(1, 0)


def removed(keep: Keep, scores: dict[int, float | None]) -> list[int]:
    found = [
        Scored(commit=Commit(step=step, writer=WRITER), score=score)
        for step, score in scores.items()
    ]
    return [commit.step for commit in decide_removals(found, keep)]


FIVE = {10: 0.5, 20: 0.1, 30: 0.3, 40: 0.4, 50: None}


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Keep(last=2), [10, 20, 30]),
        (Keep(last=9), []),
        (Keep(last=1, best=True), [10, 30, 40]),
        (Keep(last=1, every_steps=20), [10, 30]),
        (Keep(last=1, best=True, every_steps=30), [10, 40]),
    ],
    ids=str,
)
def test_the_last_the_best_and_every_nth_are_kept(keep, gone):
    assert removed(keep, FIVE) == gone


def test_nothing_is_best_where_no_score_is_known():
    assert removed(Keep(last=1, best=True), {1: None, 2: None}) == [1]


def test_an_interval_in_steps_is_due_at_its_multiples():
    timer = Timer(Interval(steps=5), 1.0, StoppedClock(100.0))
    assert [step for step in range(1, 12) if timer.is_step_due(step)] == [5, 10]


def test_an_interval_in_seconds_counts_from_the_last_save():
    clock = StoppedClock(100.0)
    timer = Timer(Interval(seconds=60), 1.0, clock)
    clock.now += 59
    assert not timer.is_time_due()
    clock.now += 1
    assert timer.is_time_due()
    timer.on_saved(0.1)
    assert not timer.is_time_due()


def test_youngs_interval_is_the_root_of_twice_the_cost_times_the_mtbf():
    assert young_interval_s(2.0, 3600.0) == pytest.approx(120.0)


def test_a_chosen_interval_follows_the_measured_cost_and_the_given_mtbf():
    timer = Timer(Interval(mtbf_s=3600.0), 1.0, StoppedClock(100.0))
    timer.on_saved(2.0)
    assert timer.seconds == pytest.approx(120.0)


def test_a_chosen_interval_follows_the_observed_mtbf_where_none_is_given():
    timer = Timer(Interval(), 900.0, StoppedClock(100.0))
    timer.on_saved(2.0)
    assert timer.seconds == pytest.approx(60.0)


def starts(*times: float) -> list[Start]:
    return [Start(writer=Writer(number, 0), base=None, at=at) for number, at in enumerate(times, 1)]


def test_the_mtbf_is_observed_from_the_starts():
    assert observe_mtbf_s(starts(0.0, 50.0, 80.0), now=100.0) == pytest.approx(50.0)


def test_before_the_first_failure_a_day_without_one_is_taken_for_granted():
    assert observe_mtbf_s(starts(0.0), now=100.0) == MTBF_BEFORE_FAILURES_S
