"""What is measured: samples and their median, a row of the table, and whether it reaches its goal,
or is open."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from benchmarks.intervals import Interval


class BenchmarkError(Exception):
    """A benchmark that cannot run here: what is wrong, and the fix."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The samples of one side, in the order in which they were taken, at least one.

    They are seconds, as all names say, but for those that have another ``unit``, such as MB.
    """

    samples_s: tuple[float, ...]
    unit: str = "s"

    @property
    def median_s(self) -> float:
        """Half of the samples are below; a single slow one does not weigh in, as in a mean."""
        return statistics.median(self.samples_s)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a row shall reach: at most this ratio to the peer, or this many seconds of ours.

    Where ours is measured in another unit, ``of="seconds"`` is a number of those.
    """

    of: Literal["ratio", "seconds"]
    most: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison; ``theirs`` is None where there is no peer or it is not installed.

    ``theirs_instead`` tells in words what the peer did where that is no figure. ``note`` says what
    a reader of the figures must know, such as how to install the peer. ``interval`` is where the
    ratio lies with a probability of 95 %, ``median_interval`` the same of our median.
    """

    benchmark: str
    what: str
    ours: Measurement
    theirs: Measurement | None = None
    goal: Goal | None = None
    note: str = ""
    theirs_instead: str = ""
    interval: Interval | None = None
    median_interval: Interval | None = None

    @property
    def ratio(self) -> float | None:
        """Our median over theirs: below 1 we are faster. None where theirs is nothing."""
        if self.theirs is None or self.theirs.median_s == 0:
            return None
        return self.ours.median_s / self.theirs.median_s

    @property
    def judged(self) -> tuple[float, Interval | None] | None:
        """The figure that the goal is about and its interval; None where there is none."""
        if self.goal is None:
            return None
        if self.goal.of == "seconds":
            return self.ours.median_s, self.median_interval
        return None if self.ratio is None else (self.ratio, self.interval)

    @property
    def is_open(self) -> bool:
        """Whether the interval holds the goal, so that it is not known if that is reached."""
        if self.goal is None or self.judged is None:
            return False
        _, interval = self.judged
        return interval is not None and interval[0] <= self.goal.most < interval[1]

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached; None without a goal, or where it cannot be told."""
        if self.goal is None or self.judged is None or self.is_open:
            return None
        return self.judged[0] <= self.goal.most

    @property
    def is_sure(self) -> bool:
        """Whether more samples would change nothing: the interval is narrower than the distance of
        the figure to its goal, or there is no goal."""
        if self.goal is None or self.judged is None:
            return True
        figure, interval = self.judged
        if interval is None:
            return False
        width = interval[1] - interval[0]
        return width == 0 or width < abs(figure - self.goal.most)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The rows of one benchmark, with the command that gives them again.

    ``machine`` is one line in words; ``load`` is how busy it was at the start, ``taken`` the day.
    """

    benchmark: str
    command: str
    machine: str
    load: float
    taken: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What ``--json`` writes. An end of an interval that is not known is the text ``Infinity``."""

    reports: tuple[Report, ...]

    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="strings")


JSON = TypeAdapter(Reports)
"""Raises ``ValueError`` where it reads anything else."""
