"""What is measured: samples, their median and range, a row of the table, and a whole report."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

NARROW = 0.03
"""Width of a ratio's interval at which more samples would say nothing new."""
RESAMPLES = 2_000

Sample = Callable[[], float]
"""Measures once and gives seconds, or what the benchmark says instead."""


class BenchmarkError(Exception):
    """A benchmark that cannot run here: what is wrong, and the fix."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The samples of one side, in the order in which they were taken, at least one.

    They are seconds, as all names say, but for the few that have another ``unit``.
    """

    samples_s: tuple[float, ...]
    unit: Literal["s", "MB"] = "s"

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

    def per(self, count: int) -> Measurement:
        """The same for one of ``count`` equal parts."""
        return Measurement(samples_s=tuple(sample / count for sample in self.samples_s))


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a row shall reach: at most this ratio to the peer, or this many seconds."""

    of: Literal["ratio", "seconds"]
    most: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison; ``theirs`` is None where there is no peer or it is not installed.

    ``theirs_instead`` tells in words what the peer did where that is no figure. ``note`` says what
    a reader of the figures must know, such as how to install the peer. ``interval`` is where the
    ratio lies with a probability of 95 %, where that was found out.
    """

    benchmark: str
    what: str
    ours: Measurement
    theirs: Measurement | None = None
    goal: Goal | None = None
    note: str = ""
    theirs_instead: str = ""
    interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """Our median over theirs: below 1 we are faster."""
        return self.ours.median_s / self.theirs.median_s if self.theirs else None

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached; None without a goal, or where it cannot be told."""
        if self.goal is None:
            return None
        reached = self.ours.median_s if self.goal.of == "seconds" else self.ratio
        return None if reached is None else reached <= self.goal.most


@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows of one call, with the command that gives them again and where they were taken.

    ``machine`` is one line in words; ``repetitions`` is the number of samples of each side.
    """

    command: str
    machine: str
    repetitions: int
    rows: tuple[Row, ...]

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data; median, range, ratio and ok are there for readers without this program."""
        return {
            "command": self.command,
            "machine": self.machine,
            "repetitions": self.repetitions,
            "rows": [_row_to_jsonable(row) for row in self.rows],
        }


def parse_report(data: dict[str, Any]) -> Report:
    """Reads back what ``Report.to_jsonable`` gave. Raises KeyError or TypeError for others."""
    return Report(
        command=data["command"],
        machine=data["machine"],
        repetitions=data["repetitions"],
        rows=tuple(_parse_row(row) for row in data["rows"]),
    )


def interleave(repetitions: int, *sides: Sample, warm_up: int = 1) -> tuple[Measurement, ...]:
    """Samples of every side in turn, A B A B and not A A B B: a drift of the machine hits all.

    The ``warm_up`` rounds before them are not counted: they fill the caches of files and bytecode.
    """
    for _ in range(warm_up):
        for sample in sides:
            sample()
    rounds = [[sample() for sample in sides] for _ in range(repetitions)]
    return tuple(Measurement(samples_s=samples) for samples in zip(*rounds, strict=True))


def estimate_ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, float]:
    """The 95 % interval of the ratio of both medians, by the bootstrap over pairs of samples.

    Pairs, because both samples of a round met the same load. One pair alone tells nothing: then
    the interval has no end. B. Efron, R. Tibshirani 1993, "An Introduction to the Bootstrap".
    """
    count = len(ours)
    if count < 2:
        return 0.0, float("inf")
    draw = random.Random(0)
    ratios = []
    for _ in range(RESAMPLES):
        chosen = [draw.randrange(count) for _ in range(count)]
        mine = statistics.median(ours[each] for each in chosen)
        ratios.append(mine / statistics.median(theirs[each] for each in chosen))
    ratios.sort()
    return ratios[RESAMPLES // 40], ratios[-1 - RESAMPLES // 40]


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
        "interval": row.interval,
    }


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
        theirs_instead=data.get("theirs_instead", ""),
        interval=tuple(data["interval"]) if data.get("interval") else None,
    )


def _parse_measurement(data: dict[str, Any]) -> Measurement:
    return Measurement(samples_s=tuple(data["samples_s"]), unit=data.get("unit", "s"))
