"""``step``: one optimizer step of the training loop, beside the same model in raw DDP; all loggers,
beside none."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator

from benchmarks.commands import answering
from benchmarks.measure import Goal
from benchmarks.trials import Comparison, Round, Trial

PROCESSES = (1, 2, 4)
EPOCHS = 8
"""120 steps: of fewer, the median still moves."""
SHARDS = 16
"""Micro-batches of a step where the world is to have no say in the result."""
SHARDED_EPOCHS = 4
"""60 steps of so many micro-batches each, whose median moves less."""
PROGRAM = "benchmarks.step_ranks"
GOALS = {
    "fast": Goal(of="ratio", most=1.0),
    "exact": Goal(of="ratio", most=1.1),
}
LOGGED_PROCESSES = (1, 2)
LOGGED_EPOCHS = 40
"""600 steps, of which every fiftieth has a row."""
PLAIN_GOAL = Goal(of="ratio", most=1.03)
"""One micro-batch for each process, which is what people usually run."""


def steps() -> Generator[Trial]:
    """One row for each reduction and number of processes; a sample is one training's median.

    Then all loggers against none, whose sample is the mean: rows are written in some steps only.
    """
    for nproc in PROCESSES:
        yield from _compare("fast", nproc, nproc, PLAIN_GOAL)
        for reduction, goal in GOALS.items():
            yield from _compare(reduction, nproc, SHARDS, goal)
    for nproc in LOGGED_PROCESSES:
        what = f"all loggers against none, nproc {nproc}"
        yield from _ask(what, Goal(of="ratio", most=1.02), "logged", nproc, nproc, LOGGED_EPOCHS)


def _compare(reduction: str, nproc: int, shards: int, goal: Goal) -> Generator[Trial]:
    epochs = SHARDED_EPOCHS if shards == SHARDS else EPOCHS
    what = f"{reduction} against raw DDP, nproc {nproc}, {shards} micro-batches"
    yield from _ask(what, goal, reduction, nproc, shards, epochs)


def _ask(what: str, goal: Goal, *words: object) -> Generator[Trial]:
    row = Comparison(what=what, ours="ours", theirs="theirs", goal=goal)
    with answering((sys.executable, "-m", PROGRAM, *map(str, words))) as ask:
        yield Trial(take=lambda: read_round(ask()), rows=(row,))


def read_round(answer: str) -> Round:
    """The median step times of both sides, in seconds, from one line of the program."""
    return {side: float(told["median_step_s"]) for side, told in json.loads(answer).items()}
