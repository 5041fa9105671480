"""``strategies``: step time, memory and bytes sent of each ``--strategy``, beside plain PyTorch and
a formula."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from typing import Any

from benchmarks.commands import answering
from benchmarks.measure import Goal, Row
from benchmarks.trials import Comparison, Round, Trial

PROCESSES = (1, 2, 4)
MEMORY_PAIRS = 3
"""Memory is nearly the same each time."""
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
TENSOR = 2

Formula = Callable[[int], float]
"""Bytes that the busiest process sends in a step, by the number of processes."""


def all_reduce(elements: float, processes: int) -> float:
    """Bytes of a ring that adds up 32-bit numbers."""
    return 8 * elements * (processes - 1) / processes


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
    "fsdp": send_fsdp,
    "tp": send_tp,
    "fsdp+tp": send_fsdp_tp,
    "pipeline": send_pipeline,
    "powersgd": send_powersgd,
    "fp16": lambda processes: all_reduce(WEIGHTS, processes) / 2,
}
"""What docs/strategies-all.md says, for this model, over gloo."""


def strategies() -> Generator[Trial]:
    """Step time, memory and bytes of each strategy in each world that it can be in."""
    for name in FORMULAS:
        for nproc in PROCESSES:
            if name != "fsdp+tp" or nproc >= TENSOR:
                yield from strategy(name, nproc)


def strategy(name: str, nproc: int) -> Generator[Trial]:
    """Three rows of one; one process imports torch for all samples, one for those of memory."""
    what = f"{name}, nproc {nproc}"
    argv = (sys.executable, "-m", PROGRAM, name, str(nproc))
    with answering(argv) as ask:
        yield Trial(
            take=lambda: read_round(ask()),
            rows=(
                Comparison(
                    what=f"{what}: step",
                    ours="ours: step",
                    theirs="theirs: step",
                    goal=STEP,
                    note=lambda row: f"{what}: {describe_step(row, FORMULAS[name](nproc))}",
                ),
                Comparison(
                    what=f"{what}: bytes sent in a step",
                    ours="ours: sent",
                    # Of one process alone a ratio of nearly no bytes says nothing.
                    theirs="theirs: sent" if nproc > 1 else None,
                    unit="MB",
                ),
            ),
        )
    memory = Comparison(
        what=f"{what}: memory",
        ours="ours: memory",
        theirs="theirs: memory",
        goal=MEMORY,
        unit="MB",
    )
    with answering(argv, FREES_AT_ONCE) as ask:
        yield Trial(take=lambda: read_round(ask()), rows=(memory,), pairs=MEMORY_PAIRS)


def read_round(answer: str) -> Round:
    """The figures of both sides, from one line of the program; bytes as MB."""
    told: dict[str, dict[str, Any]] = json.loads(answer)
    return {
        f"{side}: {name}": told[side][key] * scale
        for side in ("ours", "theirs")
        for name, key, scale in (
            ("step", "step_s", 1.0),
            ("memory", "memory", 1e-6),
            ("sent", "sent", 1e-6),
        )
    }


def describe_step(row: Row, formula_bytes: float) -> str:
    """What follows from the time of a step, and what it should send."""
    assert row.theirs
    ours, theirs = (BATCH / side.median_s for side in (row.ours, row.theirs))
    formula = f"bytes by the formula {formula_bytes / 1e6:.3f} MB"
    return f"{ours:.0f} samples/s, theirs {theirs:.0f}; {formula}"
