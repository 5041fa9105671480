"""Intervals hold what they are of as often as they say, and narrow with the samples."""

import math
import random
import statistics

import pytest

from benchmarks import intervals
from benchmarks.intervals import ENOUGH, UNKNOWN, estimate_median, estimate_ratio


def draw_pairs(draw: random.Random, count: int, noise: float) -> tuple[list[float], list[float]]:
    """Pairs whose true ratio is 2; both samples of one met the same load."""
    load = [draw.uniform(1.0, 1.5) for _ in range(count)]
    ours = [2 * each * draw.lognormvariate(0, noise) for each in load]
    return ours, [each * draw.lognormvariate(0, noise) for each in load]


def test_the_interval_of_a_ratio_holds_it_and_narrows_with_the_samples():
    draw = random.Random(1)

    def width(count: int) -> float:
        low, high = estimate_ratio(*draw_pairs(draw, count, 0.01))
        assert low <= 2.06
        assert high >= 1.94
        return high - low

    assert width(400) < width(6)


@pytest.mark.parametrize("count", [2, 3, 5, ENOUGH, 12])
def test_the_interval_holds_the_true_ratio_nine_times_of_ten_at_least(count, monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 200)
    draw = random.Random(count)
    held = 0
    for _ in range(200):
        low, high = estimate_ratio(*draw_pairs(draw, count, 0.1))
        held += low <= 2 <= high
    assert held >= 180


def test_one_pair_of_samples_says_nothing_about_a_ratio():
    assert estimate_ratio((1.0,), (1.0,)) == UNKNOWN == (0.0, math.inf)


@pytest.mark.parametrize("count", [2, ENOUGH])
@pytest.mark.parametrize("counted", [0.0, 6.56])
def test_samples_that_are_all_the_same_are_known_exactly(count, counted):
    assert estimate_median((counted,) * count) == (counted, counted)


def test_the_ratio_of_the_medians_is_always_in_its_interval():
    draw = random.Random(3)
    for count in (2, 3, 4, 5, 6, 9) * 20:
        ours, theirs = draw_pairs(draw, count, 0.5)
        low, high = estimate_ratio(ours, theirs)
        assert low <= statistics.median(ours) / statistics.median(theirs) <= high


def test_few_samples_are_known_less_than_their_own_range_says():
    low, high = estimate_median((1.0, 1.1, 1.2))
    assert low < 1.0
    assert high > 1.2
