"""The results of a training: metrics.json, and the summary that rank 0 prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from fabric_train.checkpointing.durable import write_file
from fabric_train.worker_env import METRICS_FILE


class Measures(TypedDict, total=False):
    """Further measures of a workload."""

    test_bits_per_character: float


class Scores(Measures):
    """The model's results on the test set."""

    test_accuracy: float
    test_loss: float
    test_samples: int


class Metrics(Scores):
    """The content of metrics.json; losses are means, times are in seconds.

    ``train_loss``: of the last whole epoch, or up to the last step; None where neither is known.
    ``skipped_steps``: those of ``steps`` whose gradient overflowed in float16.
    ``mfu``: model FLOPs utilisation, from 0 to 1; None where the device's peak is not known.
    """

    train_loss: float | None
    duration_s: float
    fit_s: float
    samples_per_s: float
    mfu: float | None
    median_step_s: float
    first_step_at: float
    steps: int
    skipped_steps: int
    epochs: int
    resumed_from_step: int
    world_size: int
    global_batch_size: int
    checkpoint: str
    weights_sha256: str


def format_summary(metrics: Metrics) -> str:
    """The last lines of a run."""
    bits = metrics.get("test_bits_per_character")
    per_character = f", {bits:.3f} bits per character" if bits is not None else ""
    overflows = metrics["skipped_steps"]
    skipped = f", {overflows} of them left out after an overflow," if overflows else ""
    return (
        f"test accuracy {metrics['test_accuracy']:.4f}, test loss {metrics['test_loss']:.4f}"
        f"{per_character} "
        f"({metrics['test_samples']} samples)\n"
        f"trained {metrics['steps']} steps{skipped} in {metrics['fit_s']:.1f} s "
        f"({metrics['samples_per_s']:,.0f} samples/s), {metrics['duration_s']:.1f} s in all\n"
        f"checkpoint {metrics['checkpoint']}"
    )


def write_metrics(folder: Path, metrics: Metrics) -> None:
    """Replaces metrics.json in the run folder atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(metrics, indent=2, allow_nan=False).encode() + b"\n"
    write_file(folder / METRICS_FILE, lambda file: file.write(content))
