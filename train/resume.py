"""Where a training goes on from, and what it leaves for the next start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from lightning.fabric import Fabric

from train.build import Run
from train.checkpoint import Checkpoint, CheckpointStore
from train.config import TrainConfig
from train.errors import InputError
from train.randomness import capture_generators
from train.sampler import plan_virtual_shards
from train.state import capture_state, check_fits, restore_state
from train.strategies import gather
from train.worker_env import WorkerEnv

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What earlier starts left: the newest good checkpoint, and why newer ones were skipped."""

    checkpoint: Checkpoint | None
    skipped: tuple[str, ...]


def read_earlier(fabric: Fabric, store: CheckpointStore) -> Earlier:
    """Rank 0 reads and hands it to the others, whose nodes need not see the folder."""

    def read() -> Earlier:
        store.open()
        checkpoint, skipped = store.read_newest()
        return Earlier(checkpoint=checkpoint, skipped=tuple(skipped))

    return decide_on_rank_zero(fabric, read)


def choose_virtual_shards(config: TrainConfig, env: WorkerEnv, earlier: Earlier) -> int:
    """What was asked for, else what the training began with, else as many as it may need.

    Raises InputError where the global batch cannot be cut so.
    """
    given = config.virtual_shards
    if given is None and earlier.checkpoint:
        given = earlier.checkpoint.payload["config"].get("virtual_shards")
    return plan_virtual_shards(
        given,
        global_batch_size=config.global_batch_size,
        largest_world=max(env.world_size, env.max_world_size or 1),
        exact=config.reduction == "exact",
    )


def resume(run: Run, earlier: Earlier) -> tuple[int, Path | None]:
    """Continues from the newest checkpoint, if any: its step and where it lies.

    Raises InputError, on all ranks, where it is of another training.
    """
    for note in earlier.skipped:
        run.say(note)
    found = earlier.checkpoint
    if found is None:
        return 0, None
    # Every rank compares the same, so that all refuse or none does.
    check_fits(found.payload, run.state, run.config, run.facts)
    restore_state(
        found.payload,
        run.state,
        seed=run.config.seed,
        rank=run.fabric.global_rank,
        world_size=run.fabric.world_size,
        device=run.fabric.device,
    )
    step, stop_step = run.state.step, run.schedule.stop_step
    if step >= stop_step:
        run.say(f"already trained {step} of {stop_step} steps, only tests: {found.path}")
    else:
        run.say(f"resumes after step {step} of {stop_step}: {found.path}")
    return step, found.path


def save(run: Run, epoch: int) -> Path | None:
    """Commits the state, on rank 0 alone; all ranks must call it, for their generators' states."""
    generators = gather(capture_generators(run.fabric.device))
    if not run.leads:
        return None
    return run.store.write(
        capture_state(run.state, run.config, epoch=epoch, generators=generators, facts=run.facts)
    )


def decide_on_rank_zero(fabric: Fabric, decide: Callable[[], T]) -> T:
    """What ``decide`` gives on rank 0, on all ranks; an InputError there is raised on all.

    Otherwise the others would wait for a rank 0 that has long gone.
    """
    outcome: T | InputError | None = None
    if fabric.global_rank == 0:
        try:
            outcome = decide()
        except InputError as error:
            outcome = error
    outcome = fabric.broadcast(outcome)
    if isinstance(outcome, InputError):
        raise outcome if fabric.global_rank == 0 else InputError(f"rank 0 refuses: {outcome.what}")
    return cast("T", outcome)
