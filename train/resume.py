"""Where a training goes on from."""

from __future__ import annotations

from pathlib import Path

from train.build import Run
from train.config import TrainConfig
from train.manifest import Manifest
from train.sampler import plan_virtual_shards
from train.schedule import plan_batch_size
from train.worker_env import WorkerEnv


def choose_virtual_shards(config: TrainConfig, env: WorkerEnv, earlier: Manifest | None) -> int:
    """What was asked for, else what the training began with, else as many as it may need.

    Raises InputError where the global batch cannot be cut so.
    """
    given = config.virtual_shards
    if given is None and config.reduction == "scaled":
        given = env.world_size
    if given is None and earlier:
        given = earlier.config.get("virtual_shards")
    return plan_virtual_shards(
        given,
        global_batch_size=plan_batch_size(config, env.world_size),
        largest_world=max(env.world_size, env.max_world_size or 1),
        exact=config.reduction == "exact",
    )


def resume(run: Run) -> tuple[int, Path | None]:
    """Continues from the newest checkpoint, if any: its step and where it lies.

    Raises InputError, on all ranks, where it is of another training.
    """
    path = run.continuity.resume()
    step = run.state.step
    stop_step = run.schedule.anchored(step, run.state.sample).stop_step
    if path is not None and step >= stop_step:
        run.say(f"already trained {step} of {stop_step} steps, only tests: {path}")
    elif path is not None:
        run.say(f"resumes after step {step} of {stop_step}: {path}")
    return step, path
