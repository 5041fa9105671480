"""How far a median or a ratio is known: the interval that holds it with a probability of 95 %."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

RESAMPLES = 2_000
ENOUGH = 6
"""Samples from which the bootstrap can give 95 %. Of five, all lie on one side of the true median
1 time in 16, and then so does every interval that is drawn from them."""
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""Student's t for 95 % of both sides, by degrees of freedom."""
UNKNOWN = (0.0, math.inf)

Interval = tuple[float, float]
"""Its low and its high end."""


def estimate_median(samples: Sequence[float]) -> Interval:
    """The interval of a median. One sample says nothing: then there is no upper end."""
    return estimate_ratio(samples, [1.0] * len(samples))


def estimate_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The interval of the ratio of both medians, from pairs: both samples of one met the same load.

    By the bootstrap over pairs (B. Efron, R. Tibshirani 1993, "An Introduction to the Bootstrap");
    of fewer than ``ENOUGH`` pairs by Student's t of the logarithms of their ratios, which is wide.
    One pair says nothing: then there is no upper end.
    """
    count = len(ours)
    if count < 2 or min(theirs) <= 0:
        return UNKNOWN
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    if len(set(ratios)) == 1:  # A count, which may be zero.
        return ratios[0], ratios[0]
    if min(ours) <= 0:
        return UNKNOWN
    median = statistics.median(ours) / statistics.median(theirs)
    if count >= ENOUGH:
        low, high = _bootstrap(ours, theirs)
    else:
        low, high = _student(ratios)
    # Student's is around the geometric mean, which few samples may have elsewhere.
    return min(low, median), max(high, median)


def _bootstrap(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    draw = random.Random(0)
    median: Callable[[list[float]], float] = statistics.median
    pairs = range(len(ours))
    ratios = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(pairs, k=len(pairs))
        ratios.append(median([ours[i] for i in chosen]) / median([theirs[i] for i in chosen]))
    ratios.sort()
    return ratios[RESAMPLES // 40], ratios[-1 - RESAMPLES // 40]


def _student(ratios: Sequence[float]) -> Interval:
    logs = [math.log(ratio) for ratio in ratios]
    half = STUDENT[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    center = statistics.fmean(logs)
    # Beyond, exp overflows, and nothing is known anyway.
    return math.exp(max(center - half, -700.0)), math.exp(min(center + half, 700.0))
