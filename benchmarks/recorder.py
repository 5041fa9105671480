"""``recorder``: a training step with torch's flight recorder, beside the same one without."""

from __future__ import annotations

import sys
from collections.abc import Generator

from benchmarks.commands import answering
from benchmarks.measure import Goal
from benchmarks.step import read_round
from benchmarks.trials import Comparison, Trial

PROCESSES = (2, 4)
EPOCHS = 8
PROGRAM = "benchmarks.recorder_ranks"
GOAL = Goal(of="ratio", most=1.01)


def recorders() -> Generator[Trial]:
    """One row for each number of processes; a sample is one training's median step."""
    for nproc in PROCESSES:
        row = Comparison(
            what=f"recorder on against off, nproc {nproc}", ours="ours", theirs="theirs", goal=GOAL
        )
        with answering((sys.executable, "-m", PROGRAM, str(nproc), str(EPOCHS))) as ask:
            yield Trial(take=lambda ask=ask: read_round(ask()), rows=(row,))
