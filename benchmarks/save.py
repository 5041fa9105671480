"""``save`` and ``resume``: what a checkpoint keeps a training from its work."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import run
from benchmarks.measure import Goal, Row, interleave

STATE_MB = (1, 10, 100)
"""Of weights and moments; only the largest is what people wait for."""
POSITIONS = (1_000_000, 10)
"""Steps that a training has made when it is resumed."""
PROGRAM = "benchmarks.peers.saving"


def measure_save(repetitions: int) -> Iterator[Row]:
    """The blocking part of an asynchronous save against DCP's synchronous one, both to the disk."""
    for size in STATE_MB:
        ours, theirs = interleave(
            repetitions,
            partial(_time, "asynchronous", str(size)),
            partial(_time, "synchronous", str(size)),
        )
        yield Row(
            benchmark="save",
            what=f"blocking part of a save against dcp.save, {size} MB of state",
            ours=ours,
            theirs=theirs,
            goal=Goal(of="ratio", most=0.2) if size >= 100 else None,
        )


def measure_resume(repetitions: int) -> Iterator[Row]:
    """From nothing to the next batch, late in a training against early in it."""
    late, early = interleave(
        repetitions, *(partial(_time, "resume", str(position)) for position in POSITIONS)
    )
    yield Row(
        benchmark="resume",
        what="resuming to the next batch, after 1,000,000 steps against after 10",
        ours=late,
        theirs=early,
        goal=Goal(of="ratio", most=1.1),
    )


def _time(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        argv: Sequence[str] = (sys.executable, "-m", PROGRAM, folder, *arguments)
        run(argv)
        seconds: float = json.loads((Path(folder) / "seconds.json").read_text())
        return seconds
