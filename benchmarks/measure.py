"""What is measured: samples, their median and range, a row of the table, and a report."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

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

    @property
    def min_s(self) -> float:
        """The fastest sample."""
        return min(self.samples_s)

    @property
    def max_s(self) -> float:
        """The slowest sample."""
        return max(self.samples_s)


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
        """Our median over theirs: below 1 we are faster."""
        return self.ours.median_s / self.theirs.median_s if self.theirs else None

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

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data; median, range, ratio and ok are there for readers without this program."""
        return {**vars(self), "rows": [_row_to_jsonable(row) for row in self.rows]}


def parse_report(data: dict[str, Any]) -> Report:
    """Reads back what ``Report.to_jsonable`` gave. Raises KeyError or TypeError for others."""
    return Report(
        benchmark=data["benchmark"],
        command=data["command"],
        machine=data["machine"],
        load=data["load"],
        taken=data["taken"],
        rows=tuple(_parse_row(row) for row in data["rows"]),
    )


def _row_to_jsonable(row: Row) -> dict[str, Any]:
    return {
        "benchmark": row.benchmark,
        "what": row.what,
        "ours": _measurement_to_jsonable(row.ours),
        "theirs": _measurement_to_jsonable(row.theirs) if row.theirs else None,
        "ratio": row.ratio,
        "goal": vars(row.goal) if row.goal else None,
        "ok": row.ok,
        "note": row.note,
        "theirs_instead": row.theirs_instead,
        "interval": _interval_to_jsonable(row.interval),
        "median_interval": _interval_to_jsonable(row.median_interval),
    }


def _interval_to_jsonable(interval: Interval | None) -> list[float | None] | None:
    """JSON has no infinity."""
    return interval and [None if math.isinf(end) else end for end in interval]


def _measurement_to_jsonable(measurement: Measurement) -> dict[str, Any]:
    return {
        "median_s": measurement.median_s,
        "min_s": measurement.min_s,
        "max_s": measurement.max_s,
        "samples_s": list(measurement.samples_s),
        "unit": measurement.unit,
    }


def _parse_row(data: dict[str, Any]) -> Row:
    theirs, goal = data["theirs"], data["goal"]
    return Row(
        benchmark=data["benchmark"],
        what=data["what"],
        ours=_parse_measurement(data["ours"]),
        theirs=_parse_measurement(theirs) if theirs else None,
        goal=Goal(**goal) if goal else None,
        note=data["note"],
        theirs_instead=data["theirs_instead"],
        interval=_parse_interval(data["interval"]),
        median_interval=_parse_interval(data["median_interval"]),
    )


def _parse_interval(data: list[float | None] | None) -> Interval | None:
    if data is None:
        return None
    low, high = (math.inf if end is None else end for end in data)
    return low, high


def _parse_measurement(data: dict[str, Any]) -> Measurement:
    return Measurement(samples_s=tuple(data["samples_s"]), unit=data["unit"])
