"""``start``: from the command to the first optimizer step, beside plain torchrun."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

from benchmarks.commands import find_launcher, find_torchrun, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Trial, compare

PROCESSES = (1, 2)
TRAINING = ("--max_steps=1",)
"""One step is all that is measured; what comes after it is the same on both sides."""
GOAL = Goal(of="ratio", most=1.05)


def starts() -> Generator[Trial]:
    """One row for each number of processes."""
    for nproc in PROCESSES:
        yield compare(
            f"launcher run against torchrun, nproc {nproc}",
            partial(start_launcher, nproc),
            partial(start_torchrun, nproc),
            GOAL,
        )


def start_launcher(nproc: int) -> float:
    """Seconds from the launcher's start to the end of the first optimizer step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        options = ("--on", "local", "--runs", runs, "--nproc-per-node", str(nproc))
        job = ("run", "jobs/digits.yaml", *options, "--", *TRAINING)
        ran = run((*find_launcher(), *job))
        return read_first_step(Path(runs) / "latest") - ran.started_at


def start_torchrun(nproc: int) -> float:
    """The same by torchrun alone, with the same training arguments."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as run_dir:
        job = ("--standalone", "--nproc-per-node", str(nproc), "-m", "train", *TRAINING)
        ran = run((*find_torchrun(), *job), {"RUN_DIR": run_dir})
        return read_first_step(Path(run_dir)) - ran.started_at


def read_first_step(run_dir: Path) -> float:
    """When the first step ended, Unix seconds, as the training wrote it."""
    path = run_dir / "metrics.json"
    try:
        return float(json.loads(path.read_text())["first_step_at"])
    except (OSError, ValueError, KeyError) as error:
        raise BenchmarkError(f"the training left no first_step_at in {path.name}") from error
