"""Rules for which checkpoints are kept and how often one is written (Young's formula); pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fabric_train.checkpointing.lineage import Commit, Start

MTBF_BEFORE_FAILURES_S = 24 * 3600.0
"""The mean time between failures that is assumed before the first failure."""
LEAST_INTERVAL_S = 0.2
"""The shortest interval that Young's formula may choose."""
KEPT = 3
"""How many of the newest checkpoints are kept by default."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """What is kept: the ``last`` newest, the one with the lowest score if ``best``, and those whose
    step is a multiple of ``every_steps``."""

    last: int = KEPT
    best: bool = False
    every_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A committed checkpoint and its score; lower is better, None is unknown."""

    commit: Commit
    score: float | None


def decide_removals(candidates: Sequence[Scored], keep: Keep) -> tuple[Commit, ...]:
    """The commits that may be deleted, oldest first; never the newest."""
    ordered = sorted(candidates, key=lambda each: (each.commit.step, each.commit.writer))
    kept = {each.commit for each in ordered[-max(1, keep.last) :]}
    scored = [each for each in ordered if each.score is not None]
    if keep.best and scored:
        kept.add(min(scored, key=lambda each: each.score or 0.0).commit)
    if keep.every_steps:
        kept |= {each.commit for each in ordered if each.commit.step % keep.every_steps == 0}
    return tuple(each.commit for each in ordered if each.commit not in kept)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """When a checkpoint is due: after ``steps``, after ``seconds``, else by Young's formula.

    ``mtbf_s``: the mean time between failures for Young's formula; None: as observed.
    """

    steps: int | None = None
    seconds: float | None = None
    mtbf_s: float | None = None

    @property
    def is_chosen(self) -> bool:
        """Whether Young's formula chooses the interval."""
        return self.steps is None and self.seconds is None


def young_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Seconds between checkpoints that lose the least time (Young 1974): sqrt(2 * cost * MTBF).

    ``cost_s`` is how long a checkpoint blocks the training, not how long it takes to write.
    """
    return max(LEAST_INTERVAL_S, math.sqrt(2 * cost_s * mtbf_s))


def observe_mtbf_s(starts: Sequence[Start], now: float) -> float:
    """The mean time between failures in seconds: each start but the first followed a failure.

    ``now`` is in seconds since the epoch.
    """
    if len(starts) < 2:
        return MTBF_BEFORE_FAILURES_S
    return max(1.0, (now - min(start.at for start in starts)) / (len(starts) - 1))


class Timer:
    """When the next checkpoint is due; ranks' clocks differ, so one rank must decide for all."""

    def __init__(self, interval: Interval, mtbf_s: float, clock: Callable[[], float]) -> None:
        self._interval, self._clock = interval, clock
        self._mtbf_s = interval.mtbf_s or mtbf_s
        self._cost_s = 0.0
        self._saved_at = clock()

    def is_step_due(self, step: int) -> bool:
        """Whether the interval in steps ends with ``step``; the same on all ranks."""
        return self._interval.steps is not None and step % self._interval.steps == 0

    def is_time_due(self) -> bool:
        """Whether the interval in seconds is over, by this rank's clock and measured costs."""
        seconds = self.seconds
        return seconds is not None and self._clock() - self._saved_at >= seconds

    @property
    def seconds(self) -> float | None:
        """The interval in seconds; None if it is given in steps alone."""
        if self._interval.is_chosen:
            return young_interval_s(self._cost_s, self._mtbf_s)
        return self._interval.seconds

    def on_saved(self, blocked_s: float) -> None:
        """Notes that a save has begun, and how long it blocked the training."""
        self._saved_at = self._clock()
        # One slow save lengthens the interval for a while only.
        self._cost_s = max(self._cost_s / 2, blocked_s)
