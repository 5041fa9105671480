"""The shared loop: samples in turn, until the rows are sure or the time is over."""

import itertools
from collections.abc import Callable, Generator, Iterable

import pytest

from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Benchmark, Comparison, Sample, Trial, compare, measure, run_benchmark

HALF = Goal(of="ratio", most=0.5)


def values(*cycle: float) -> Sample:
    """A sample that gives these in turn, for ever."""
    return itertools.cycle(cycle).__next__


def ticks(step_s: float) -> Callable[[], float]:
    """A clock that has gone on by so much each time it is read."""
    return itertools.count(0.0, step_s).__next__


def count(trial: Trial, pairs: int, limit_s: float = 1e9, step_s: float = 1.0) -> int:
    """How many pairs the trial's only row has in the end."""
    (row,) = measure("start", trial, pairs, limit_s, ticks(step_s))
    return len(row.ours.samples_s)


def test_sides_are_measured_in_turn_after_rounds_that_do_not_count():
    order: list[str] = []

    def side(name: str, first: float) -> Sample:
        def sample() -> float:
            order.append(name)
            return first + order.count(name)

        return sample

    (row,) = measure("start", compare("w", side("A", 0), side("B", 10)), 3, 0)
    assert order == ["A", "B"] * 4
    assert row.benchmark == "start"
    assert row.ours.samples_s == (2, 3, 4)
    assert row.theirs.samples_s == (12, 13, 14)


def test_a_row_near_its_goal_takes_more_until_its_interval_is_narrow():
    near = compare("w", values(1.0, 1.3, 0.8, 1.1, 0.9), values(2.6), HALF)
    (row,) = measure("start", near, 6, 1e9)
    assert len(row.ours.samples_s) > 6
    assert row.interval[1] - row.interval[0] < HALF.most - 1.0 / 2.6
    assert row.ok


def test_a_row_that_stays_unsure_ends_with_the_time_and_is_open():
    at_goal = compare("w", values(0.9, 1.0, 1.1), values(2.0), HALF)
    (row,) = measure("start", at_goal, 6, 20.0, ticks(1.0))
    assert len(row.ours.samples_s) == 20
    assert row.is_open


@pytest.mark.parametrize(
    ("least", "limit_s", "step_s", "pairs"),
    [(2, 100.0, 30.0, 3), (3, 0.0, 100.0, 3)],
    ids=["no pair that would end after the limit", "the least number, however long it takes"],
)
def test_pairs_are_begun_until_the_limit(least, limit_s, step_s, pairs):
    at_goal = compare("w", values(0.9, 1.0, 1.1), values(2.0), HALF)
    assert count(at_goal, least, limit_s, step_s) == pairs


@pytest.mark.parametrize("theirs", [None, values(1.0, 2.0)])
def test_without_a_goal_or_a_peer_there_is_nothing_to_be_sure_of(theirs):
    assert count(compare("w", values(1.0, 5.0), theirs), 3) == 3
    assert count(compare("w", values(1.0, 5.0), None, HALF), 3) == 3


def test_rows_of_one_round_are_repeated_together_until_all_are_sure():
    near, far = values(1.0, 1.3, 0.8, 1.1, 0.9), values(0.1)
    trial = Trial(
        take=lambda: {"near": near(), "far": far(), "theirs": 2.6},
        rows=(
            Comparison(what="near", ours="near", goal=HALF),
            Comparison(what="far", ours="far", goal=HALF, unit="MB"),
        ),
    )
    rows = measure("start", trial, 6, 1e9)
    assert len(rows[0].ours.samples_s) == len(rows[1].ours.samples_s) > 6
    assert [row.ours.unit for row in rows] == ["s", "MB"]


def benchmark_of(trials: Iterable[Trial], ended: list[str]) -> Benchmark:
    def give() -> Generator[Trial]:
        try:
            yield from trials
        finally:
            ended.append("ended")

    return Benchmark(trials=give, limit_s=0, pairs=4)


def test_what_is_asked_for_counts_before_the_trial_and_that_before_the_benchmark():
    def counts(pairs: int | None) -> list[int]:
        trials = [compare("a", values(1.0)), compare("b", values(1.0), pairs=2)]
        rows = run_benchmark("start", benchmark_of(trials, []), pairs)
        return [len(row.ours.samples_s) for row in rows]

    assert counts(None) == [4, 2]
    assert counts(1) == [1, 1]


def test_what_a_benchmark_has_started_is_ended_where_a_sample_fails():
    def fail() -> float:
        raise BenchmarkError("no torch")

    ended: list[str] = []
    with pytest.raises(BenchmarkError):
        list(run_benchmark("start", benchmark_of([compare("a", fail)], ended)))
    assert ended == ["ended"]
