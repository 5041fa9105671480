import pytest

from fabric_train.checkpointing.lineage import Commit, Start, Writer
from fabric_train.checkpointing.retention import (
    Interval,
    Keep,
    Scored,
    Timer,
    decide_removals,
    observe_mtbf_s,
)
from tests.waiting import StoppedClock


def scored(step: int, score: float | None, attempt: int = 0) -> Scored:
    return Scored(commit=Commit(step=step, writer=Writer(1, attempt)), score=score)


FIVE = [scored(10, 0.5), scored(30, 0.3), scored(20, 0.0), scored(50, None), scored(40, 0.4)]
"""As a folder lists them: in no order."""


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Keep(), [10, 20]),
        (Keep(last=2), [10, 20, 30]),
        (Keep(last=9), []),
        (Keep(last=0), [10, 20, 30, 40]),  # the newest stays
        (Keep(last=1, best=True), [10, 30, 40]),
        (Keep(last=1, every_steps=20), [10, 30]),
        (Keep(last=1, best=True, every_steps=30), [10, 40]),
    ],
    ids=str,
)
def test_the_last_the_best_and_every_nth_are_kept(keep, gone):
    assert [commit.step for commit in decide_removals(FIVE, keep)] == gone


def test_a_step_that_was_made_again_is_newer_than_the_first():
    candidates = [scored(7, None, attempt=1), scored(7, None)]
    assert decide_removals(candidates, Keep(last=1, best=True)) == (candidates[1].commit,)


def test_an_interval_in_steps_is_due_at_its_multiples():
    timer = Timer(Interval(steps=5), 1.0, StoppedClock(100.0))
    assert [step for step in range(1, 12) if timer.is_step_due(step)] == [5, 10]
    assert not timer.is_time_due()


@pytest.mark.parametrize("steps", [None, 5])
def test_an_interval_in_seconds_counts_from_the_last_save(steps):
    clock = StoppedClock(100.0)
    timer = Timer(Interval(seconds=60, steps=steps), 1.0, clock)
    assert timer.is_step_due(5) is bool(steps)
    for _ in range(2):
        clock.now += 59
        assert not timer.is_time_due()
        for _ in range(2):
            clock.now += 1
            assert timer.is_time_due()
        timer.on_saved(0.1)


@pytest.mark.parametrize(
    ("given_s", "observed_s", "blocked_s", "interval_s"),
    [
        (3600.0, 1.0, [2.0], 120.0),  # Young: the root of twice the cost times the MTBF
        (None, 900.0, [2.0], 60.0),
        (None, 900.0, [9.0, 0.1], 90.0),  # one slow save has an effect for a while
        (None, 900.0, [8.0, 0.1, 0.1, 3.0], 73.485),
        (None, 900.0, [], 0.2),
        (None, 900.0, [1e-9], 0.2),
    ],
)
def test_a_chosen_interval_follows_the_measured_cost_and_the_mtbf(
    given_s, observed_s, blocked_s, interval_s
):
    timer = Timer(Interval(mtbf_s=given_s), observed_s, StoppedClock(100.0))
    for each in blocked_s:
        timer.on_saved(each)
    assert timer.seconds == pytest.approx(interval_s, rel=1e-4)


def starts(*times: float) -> list[Start]:
    return [Start(writer=Writer(number, 0), base=None, at=at) for number, at in enumerate(times, 1)]


@pytest.mark.parametrize(
    ("times", "mtbf_s"),
    [
        ((), 86_400.0),
        ((0.0,), 86_400.0),  # before the first failure
        ((40.0, 90.0), 60.0),
        ((90.0, 0.0, 80.0), 50.0),
        ((99.5, 99.6, 99.9), 1.0),
    ],
)
def test_the_mtbf_is_observed_from_the_starts(times, mtbf_s):
    assert observe_mtbf_s(starts(*times), now=100.0) == pytest.approx(mtbf_s)
