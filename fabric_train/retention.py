"""Which checkpoints are kept, and how often one is written: rules without effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fabric_train.lineage import Commit, Start

MTBF_BEFORE_FAILURES_S = 24 * 3600.0
"""What is taken for the mean time between failures until one has been seen."""
LEAST_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Keep:
    """``last`` newest, the one with the lowest score, and those of a multiple of ``every``."""

    last: int = 3
    best: bool = False
    every_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A committed checkpoint and how good it is, lower being better; None: not known."""

    commit: Commit
    score: float | None


def decide_removals(found: Sequence[Scored], keep: Keep) -> tuple[Commit, ...]:
    """The commits that may be deleted, oldest first; never the newest."""
    ordered = sorted(found, key=lambda each: (each.commit.step, each.commit.writer))
    kept = {each.commit for each in ordered[-max(1, keep.last) :]}
    scored = [each for each in ordered if each.score is not None]
    if keep.best and scored:
        kept.add(min(scored, key=lambda each: each.score or 0.0).commit)
    if keep.every_steps:
        kept |= {each.commit for each in ordered if each.commit.step % keep.every_steps == 0}
    return tuple(each.commit for each in ordered if each.commit not in kept)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """When a checkpoint is due: after ``steps``, after ``seconds``, or by Young's formula.

    ``mtbf_s``: the mean time between failures for Young's formula; None: as observed.
    """

    steps: int | None = None
    seconds: float | None = None
    mtbf_s: float | None = None

    @property
    def is_chosen(self) -> bool:
        """Whether the interval is left to Young's formula."""
        return self.steps is None and self.seconds is None


def young_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Seconds between checkpoints that lose least (Young 1974): sqrt(2 * cost * MTBF).

    ``cost_s`` is what a checkpoint keeps the training from its work, not how long it is written.
    """
    return max(LEAST_INTERVAL_S, math.sqrt(2 * cost_s * mtbf_s))


def observe_mtbf_s(starts: Sequence[Start], now: float) -> float:
    """Seconds between the starts of this training so far; each but the first followed a failure."""
    if len(starts) < 2:
        return MTBF_BEFORE_FAILURES_S
    return max(1.0, (now - min(start.at for start in starts)) / (len(starts) - 1))


class Timer:
    """Says when the next checkpoint is due; ranks' clocks differ, so one must decide for all."""

    def __init__(self, interval: Interval, mtbf_s: float, clock: Callable[[], float]) -> None:
        self._interval, self._clock = interval, clock
        self._mtbf_s = interval.mtbf_s or mtbf_s
        self._cost_s = 0.0
        self._saved_at = clock()

    def is_step_due(self, step: int) -> bool:
        """Whether the interval in steps ends with ``step``: all ranks know it without a clock."""
        return self._interval.steps is not None and step % self._interval.steps == 0

    def is_time_due(self) -> bool:
        """Whether the interval in seconds is over, by this rank's clock and its costs."""
        seconds = self.seconds
        return seconds is not None and self._clock() - self._saved_at >= seconds

    @property
    def seconds(self) -> float | None:
        """The interval in seconds; None where it is set in steps alone."""
        if self._interval.is_chosen:
            return young_interval_s(self._cost_s, self._mtbf_s)
        return self._interval.seconds

    def on_saved(self, blocked_s: float) -> None:
        """A checkpoint has been begun, which kept the training for so long."""
        self._saved_at = self._clock()
        # A slow moment of the disk counts for a while, and is forgotten again.
        self._cost_s = max(self._cost_s / 2, blocked_s)
