"""``step``: one optimizer step of the training loop, beside the same model in raw DDP."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

from benchmarks.commands import find_torchrun, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Trial, compare

PROCESSES = (1, 2, 4)
EPOCHS = 20
"""300 steps: of fewer, the median still moves."""
SHARDS = 16
"""Micro-batches of a step where the world is to have no say in the result."""
SHARDED_EPOCHS = 6
"""90 steps of so many micro-batches each, whose median moves less."""
OURS = "train"
THEIRS = "benchmarks.peers.raw_ddp_digits"
GOALS = {
    "fast": Goal(of="ratio", most=1.0),
    "exact": Goal(of="ratio", most=1.1),
}
PLAIN_GOAL = Goal(of="ratio", most=1.03)
"""One micro-batch for each process, which is what people usually run."""


def steps() -> Generator[Trial]:
    """One row for each reduction and number of processes; a sample is one training's median."""
    for nproc in PROCESSES:
        yield _compare("fast", nproc, nproc, PLAIN_GOAL)
        for reduction, goal in GOALS.items():
            yield _compare(reduction, nproc, SHARDS, goal)


def _compare(reduction: str, nproc: int, shards: int, goal: Goal) -> Trial:
    epochs = SHARDED_EPOCHS if shards == SHARDS else EPOCHS
    same = (f"--epochs={epochs}", f"--virtual_shards={shards}")
    return compare(
        f"{reduction} against raw DDP, nproc {nproc}, {shards} micro-batches",
        partial(time_step, (OURS, *same, f"--reduction={reduction}"), nproc),
        partial(time_step, (THEIRS, *same), nproc),
        goal,
    )


def time_step(module: tuple[str, ...], nproc: int) -> float:
    """The median time between the ends of two steps on rank 0; both sides under plain torchrun."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as run_dir:
        job = ("--standalone", "--nproc-per-node", str(nproc), "-m", *module)
        run((*find_torchrun(), *job), {"RUN_DIR": run_dir})
        return float(read_metrics(Path(run_dir))["median_step_s"])


def read_metrics(run_dir: Path) -> dict[str, float]:
    """What rank 0 wrote at its end."""
    try:
        metrics: dict[str, float] = json.loads((run_dir / "metrics.json").read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkError("the training left no readable metrics.json") from error
    return metrics
