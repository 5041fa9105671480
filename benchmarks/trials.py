"""The loop that all benchmarks share: it repeats a pair of samples until the rows are sure.

A benchmark is a function that gives trials, one after the other. A trial takes one round: one
sample of each side, in turn. The loop here takes rounds until each row's interval is narrower than
the distance to its goal, or the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from benchmarks.intervals import ENOUGH, estimate_median, estimate_ratio
from benchmarks.measure import Goal, Measurement, Row

Sample = Callable[[], float]
"""Measures once and gives seconds, or what the benchmark says instead."""
Round = Mapping[str, float]
"""The figures of one round by name; those of a pair are ``ours`` and ``theirs``."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row that is to be measured: the two figures of a round that it compares, and its goal.

    ``theirs`` is None without a peer. A ``note`` that depends on figures is a function of the row.
    """

    what: str
    ours: str = "ours"
    theirs: str | None = "theirs"
    goal: Goal | None = None
    note: str | Callable[[Row], str] = ""
    theirs_instead: str = ""
    unit: str = "s"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is repeated: ``take`` measures one round, and each of ``rows`` is made of its figures.

    Rounds of ``warm_up`` are not counted: they fill the caches of files and bytecode. ``pairs`` is
    for a round that takes minutes: so many are enough, where the benchmark asks for more.
    """

    take: Callable[[], Round]
    rows: tuple[Comparison, ...]
    warm_up: int = 1
    pairs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What one name of the command line measures.

    Each trial takes ``pairs`` rounds at least; ``limit_s`` is for how many seconds it may take
    more of them.
    """

    trials: Callable[[], Generator[Trial]]
    limit_s: float
    pairs: int = ENOUGH


def compare(
    what: str,
    ours: Sample,
    theirs: Sample | None = None,
    goal: Goal | None = None,
    *,
    note: str | Callable[[Row], str] = "",
    theirs_instead: str = "",
    unit: str = "s",
    warm_up: int = 1,
    pairs: int | None = None,
) -> Trial:
    """A trial of one row: one sample of ours and one of theirs."""
    row = Comparison(
        what=what,
        theirs=None if theirs is None else "theirs",
        goal=goal,
        note=note,
        theirs_instead=theirs_instead,
        unit=unit,
    )
    sides = {"ours": ours} if theirs is None else {"ours": ours, "theirs": theirs}
    return Trial(take=in_turn(sides), rows=(row,), warm_up=warm_up, pairs=pairs)


def in_turn(sides: Mapping[str, Sample]) -> Callable[[], Round]:
    """A round of all sides, A B A B over time and not A A B B: a drift of the machine hits all."""
    return lambda: {name: sample() for name, sample in sides.items()}


def run_benchmark(
    name: str, benchmark: Benchmark, pairs: int | None = None, limit_s: float | None = None
) -> Iterator[Row]:
    """Its rows, each trial's as soon as they are known. What is given counts instead of its own."""
    with closing(benchmark.trials()) as trials:
        for trial in trials:
            yield from measure(
                name,
                trial,
                pairs or trial.pairs or benchmark.pairs,
                benchmark.limit_s if limit_s is None else limit_s,
            )


def measure(
    name: str,
    trial: Trial,
    pairs: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Row, ...]:
    """The trial's rows. No round is begun that would probably end after the limit."""
    for _ in range(trial.warm_up):
        trial.take()
    rounds: list[Round] = []
    look, began = pairs, clock()
    while True:
        rounds.append(trial.take())
        count = len(rounds)
        next_ends_s = (clock() - began) * (count + 1) / count
        over = count >= pairs and next_ends_s > limit_s
        if not over and count < look:
            continue
        rows = tuple(make_row(name, comparison, rounds) for comparison in trial.rows)
        if over or all(row.is_sure for row in rows):
            return rows
        # An estimate of many samples takes a while itself.
        look = count + 1 + count // 8


def make_row(name: str, comparison: Comparison, rounds: Sequence[Round]) -> Row:
    """The row as these rounds have it."""
    ours = _pick(comparison, comparison.ours, rounds)
    theirs = None if comparison.theirs is None else _pick(comparison, comparison.theirs, rounds)
    goal = comparison.goal
    row = Row(
        benchmark=name,
        what=comparison.what,
        ours=ours,
        theirs=theirs,
        goal=goal,
        theirs_instead=comparison.theirs_instead,
        interval=estimate_ratio(ours.samples_s, theirs.samples_s) if theirs else None,
        median_interval=(
            estimate_median(ours.samples_s) if goal and goal.of == "seconds" else None
        ),
    )
    note = comparison.note
    return replace(row, note=note if isinstance(note, str) else note(row))


def _pick(comparison: Comparison, side: str, rounds: Sequence[Round]) -> Measurement:
    samples_s = tuple(figures[side] for figures in rounds)
    return Measurement(samples_s=samples_s, unit=comparison.unit)
