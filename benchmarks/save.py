"""``save`` and ``resume``: for how long a save holds a training up, and what a resume takes late in
a training."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import run
from benchmarks.measure import Goal
from benchmarks.trials import Trial, compare

STATE_MB = (1, 10, 100)
"""Of weights and moments; only the largest is what people wait for."""
POSITIONS = (1_000_000, 10)
"""Steps that a training has made when it is resumed."""
PROGRAM = "benchmarks.peers.saving"


def saves() -> Generator[Trial]:
    """The blocking part of an asynchronous save against DCP's synchronous one, both to the disk."""
    for size in STATE_MB:
        yield compare(
            f"blocking part of a save against dcp.save, {size} MB of state",
            partial(_time, "asynchronous", str(size)),
            partial(_time, "synchronous", str(size)),
            Goal(of="ratio", most=0.2) if size >= 100 else None,
        )


def resumes() -> Generator[Trial]:
    """From nothing to the next batch, late in a training against early in it."""
    late, early = (partial(_time, "resume", str(position)) for position in POSITIONS)
    what = "resuming to the next batch, after 1,000,000 steps against after 10"
    yield compare(what, late, early, Goal(of="ratio", most=1.1))


def _time(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        argv: Sequence[str] = (sys.executable, "-m", PROGRAM, folder, *arguments)
        run(argv)
        seconds: float = json.loads((Path(folder) / "seconds.json").read_text())
        return seconds
