"""``strategies``: each way of using several processes, beside plain PyTorch code for it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.commands import run
from benchmarks.measure import BenchmarkError, Goal, Measurement, Row, estimate_ratio

PROCESSES = (1, 2, 4)
LIMIT = 30
"""Samples of each side at most, where the interval of a ratio stays wide."""
SAMPLE_S = 60.0
"""No pair of samples takes longer."""
PROGRAM = "benchmarks.strategy_ranks"
STEP = Goal(of="ratio", most=1.03)
MEMORY = Goal(of="ratio", most=1.05)

WEIGHTS, BLOCKS, WIDTH, CONTEXT, BATCH, CLASSES = 826_112, 4, 128, 128, 8, 128
"""Of charlm's size ``small`` and the batch of a step; a test compares them with the model."""
UNIT_WEIGHTS = 793_088
"""Those in the blocks, which are fsdp's units."""
ACTIVATIONS = 4 * BATCH * CONTEXT * WIDTH
"""Bytes between two layers, of the whole batch."""
TIED = CLASSES * WIDTH
FREES_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""For memory: else glibc keeps what is freed for later, more than a strategy holds. For step times
its default, as people run it."""
EVERY, TENSOR = 4, 2

Formula = Callable[[int], float]
"""Bytes that the busiest process sends in a step, by the number of processes."""


def all_reduce(elements: float, processes: int) -> float:
    """Bytes of a ring that adds up 32-bit numbers."""
    return 8 * elements * (processes - 1) / processes


def send_ddp2(processes: int) -> float:
    """Outputs are gathered, and gloo adds up their gradients by an all-reduce; then the targets."""
    outputs = BATCH * CONTEXT * CLASSES
    gathered = (4 * outputs + 8 * BATCH * CONTEXT) * (processes - 1) / processes
    return all_reduce(WEIGHTS, processes) + gathered + all_reduce(outputs, processes)


def send_fsdp(processes: int, weights: float = WEIGHTS, units: float = UNIT_WEIGHTS) -> float:
    """Weights are gathered twice, or once outside of units; gloo adds up by an all-reduce."""
    share = (processes - 1) / processes
    return 4 * share * (weights + units) + all_reduce(weights, processes)


def send_tp(processes: int, batch: float = 1.0) -> float:
    """Two all-reduces for each of two pairs of layers in a block."""
    return 2 * 2 * BLOCKS * all_reduce(ACTIVATIONS / 4 * batch, processes)


def send_fsdp_tp(processes: int) -> float:
    """Groups of TENSOR processes; all weights of a block but norms and biases of rows are split."""
    rows = processes // TENSOR
    split = BLOCKS * (12 * WIDTH**2 + 7 * WIDTH)
    return send_tp(TENSOR, 1 / rows) + send_fsdp(
        rows, WEIGHTS - split / TENSOR, UNIT_WEIGHTS - split / TENSOR
    )


def send_pipeline(processes: int) -> float:
    """A stage in the middle sends both ways; the ends exchange the matrix that both use."""
    if processes == 1:
        return 0
    return max(ACTIVATIONS + all_reduce(TIED, 2), 2 * ACTIVATIONS * (processes > 2))


def send_powersgd(processes: int) -> float:
    """Rank 1: a row and a column of each matrix of at least twice that size, all else whole."""
    shapes = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
    matrices = [*BLOCKS * shapes, (CLASSES, WIDTH), (CONTEXT, WIDTH)]
    whole = WEIGHTS - sum(height * width for height, width in matrices)
    return all_reduce(whole + sum(height + width for height, width in matrices), processes)


FORMULAS: dict[str, Formula] = {
    "ddp": lambda processes: all_reduce(WEIGHTS, processes),
    "ddp2": send_ddp2,
    "fsdp": send_fsdp,
    "tp": send_tp,
    "fsdp+tp": send_fsdp_tp,
    "pipeline": send_pipeline,
    "powersgd": send_powersgd,
    "fp16": lambda processes: all_reduce(WEIGHTS, processes) / 2,
    "local_sgd": lambda processes: all_reduce(WEIGHTS, processes) / EVERY,
    "diloco": lambda processes: all_reduce(WEIGHTS, processes) / EVERY,
}
"""What docs/strategies.md says, for this model, over gloo."""


def measure_strategies(repetitions: int, limit: int = LIMIT) -> Iterator[Row]:
    """Step time, memory and bytes of each strategy in each world that it can be in."""
    for name in FORMULAS:
        for nproc in PROCESSES:
            if name != "fsdp+tp" or nproc >= TENSOR:
                yield from measure_one(name, nproc, repetitions, max(repetitions, limit))


def measure_one(name: str, nproc: int, least: int, most: int) -> Iterator[Row]:
    """Three rows of one strategy; one process imports torch for all samples, one for memory."""
    samples = read_samples(name, nproc, least, most)
    held = read_samples(name, nproc, 1, 1, FREES_AT_ONCE)
    ours, theirs = samples["ours"], samples["theirs"]
    step = [pick(side, "step_s") for side in (ours, theirs)]
    formula = FORMULAS[name](nproc) / 1e6
    speeds = [BATCH / side.median_s for side in step]
    what = f"{name}, nproc {nproc}"
    yield Row(
        benchmark="strategies",
        what=f"{what}: step",
        ours=step[0],
        theirs=step[1],
        goal=STEP,
        note=f"{what}: {speeds[0]:.0f} samples/s, theirs {speeds[1]:.0f}, by {len(ours)} pairs; "
        f"bytes by the formula {formula:.3f} MB",
        interval=estimate_ratio(step[0].samples_s, step[1].samples_s),
    )
    for key, words, goal, of in (
        ("memory", "memory", MEMORY, held),
        ("sent", "bytes sent in a step", None, samples),
    ):
        mine, others = (pick(of[side], key, 1e-6, "MB") for side in ("ours", "theirs"))
        yield Row(
            benchmark="strategies",
            what=f"{what}: {words}",
            ours=mine,
            # Of one process alone a ratio of nearly no bytes says nothing.
            theirs=others if key == "memory" or nproc > 1 else None,
            goal=goal,
        )


def pick(
    samples: list[dict[str, Any]], key: str, scale: float = 1.0, unit: Any = "s"
) -> Measurement:
    """One figure of all samples."""
    return Measurement(samples_s=tuple(each[key] * scale for each in samples), unit=unit)


def read_samples(
    name: str, nproc: int, least: int, most: int, environ: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The samples of both sides."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.json"
        words = (str(file), name, str(nproc), str(least), str(most))
        run((sys.executable, "-m", PROGRAM, *words), environ, timeout_s=SAMPLE_S * (most + 2))
        try:
            samples: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise BenchmarkError(f"{PROGRAM} left no readable samples: {error}") from error
    return samples
