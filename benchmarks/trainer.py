"""``trainer``: a step of Lightning's Trainer with our callback, beside the Trainer alone."""

from __future__ import annotations

import sys
from collections.abc import Generator

from benchmarks.commands import answering
from benchmarks.measure import Goal
from benchmarks.step import read_round
from benchmarks.trials import Comparison, Trial

PROCESSES = (1, 2)
STEPS = 200
PROGRAM = "benchmarks.trainer_ranks"
GOAL = Goal(of="ratio", most=1.02)


def trainers() -> Generator[Trial]:
    """One row for each number of processes; a sample is one training's median step."""
    for nproc in PROCESSES:
        row = Comparison(
            what=f"Trainer with ContinuityCallback against alone, nproc {nproc}", goal=GOAL
        )
        with answering((sys.executable, "-m", PROGRAM, str(nproc), str(STEPS))) as ask:
            yield Trial(take=lambda ask=ask: read_round(ask()), rows=(row,))
