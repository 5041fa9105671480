"""``step``: one optimizer step of the training loop, beside the same model in raw DDP."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.commands import find_torchrun, run
from benchmarks.measure import BenchmarkError, Goal, Row, interleave

PROCESSES = (1, 2)
EPOCHS = 20
"""300 steps: of fewer, the median still moves."""
OURS = "train"
THEIRS = "benchmarks.peers.raw_ddp_digits"
GOAL = Goal(of="ratio", most=1.03)


def measure_step(repetitions: int) -> Iterator[Row]:
    """One row for each number of processes; a sample is the median step of one training."""
    for nproc in PROCESSES:
        ours, theirs = interleave(
            repetitions, partial(time_step, OURS, nproc), partial(time_step, THEIRS, nproc)
        )
        yield Row(
            benchmark="step",
            what=f"training loop against raw DDP, nproc {nproc}",
            ours=ours,
            theirs=theirs,
            goal=GOAL,
        )


def time_step(module: str, nproc: int) -> float:
    """The median time between the ends of two steps on rank 0; both sides under plain torchrun."""
    with tempfile.TemporaryDirectory() as run_dir:
        job = ("--standalone", "--nproc-per-node", str(nproc), "-m", module, f"--epochs={EPOCHS}")
        run((*find_torchrun(), *job), {"RUN_DIR": run_dir})
        return float(read_metrics(Path(run_dir))["median_step_s"])


def read_metrics(run_dir: Path) -> dict[str, float]:
    """What rank 0 wrote at its end."""
    try:
        metrics: dict[str, float] = json.loads((run_dir / "metrics.json").read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkError("the training left no readable metrics.json") from error
    return metrics
