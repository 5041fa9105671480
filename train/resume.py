"""Where checkpoints lie, which options may differ at a resume, into how many virtual shards a batch
is cut, and when another world size is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fabric_train.checkpointing.manifest import CheckpointManifest
from fabric_train.checkpointing.retention import Interval, Keep
from fabric_train.checkpointing.saver import Saver
from fabric_train.errors import InputError
from fabric_train.sampling.sampler import check_accumulation, plan_virtual_shards
from fabric_train.strategies.strategy import Strategy
from fabric_train.worker_env import CHECKPOINTS_DIR, WorkerEnv
from train.config import TrainConfig
from train.schedule import plan_batch_size

MAY_DIFFER_ON_RESUME = frozenset(
    {
        "epochs",
        "max_steps",
        "accumulate",
        "patience",
        "compile",
        "sanity_pass",
        "checkpoint_activations",
        "accelerator",
        "num_workers",
        "strategy",
        "strategy_options",
        "checkpoint_dir",
        "checkpoint_every_steps",
        "checkpoint_every_s",
        "mtbf_s",
        "keep_checkpoints",
        "keep_best",
        "keep_every_steps",
        "checkpoint_async",
        "storage",
        "loggers",
        "profile",
        "log_every",
    }
)
"""Fields that a resumed run may change: how long, where and how fast to train, but not what."""


def fingerprint(config: TrainConfig) -> dict[str, Any]:
    """The fields that a checkpoint and the run that resumes it must share, as plain types.

    The parser returns subclasses of int and float, which JSON turns into plain ones.
    """
    shared = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in MAY_DIFFER_ON_RESUME
    }
    plain: dict[str, Any] = json.loads(json.dumps(shared))
    return plain


def choose_virtual_shards(
    config: TrainConfig, env: WorkerEnv, strategy: Strategy, earlier: CheckpointManifest | None
) -> int:
    """The option, else the checkpoint's number, else as many as the largest world may need.

    If the checkpoint has too few for this world, ``fast`` takes more: the number affects random
    numbers and rounding only. Raises InputError if the global batch cannot be cut into so many.
    """
    replicas = strategy.count_replicas(env.world_size)
    largest_world = max(env.world_size, env.max_world_size or 1)
    given = config.virtual_shards
    if config.accumulate:
        given = config.accumulate * replicas
        check_accumulation(config.accumulate, replicas, plan_batch_size(config, replicas))
    if given is None and config.reduction == "scaled":
        given = replicas
    if given is None and earlier:
        given = earlier.config.get("virtual_shards")
        if may_replan_shards(config) and given is not None and given < replicas:
            given = None
    return plan_virtual_shards(
        given,
        global_batch_size=plan_batch_size(config, replicas),
        largest_world=strategy.count_replicas(largest_world),
        exact=config.reduction == "exact",
    )


def may_replan_shards(config: TrainConfig) -> bool:
    """Whether a resumed training may cut its batches into more parts than it began with."""
    return config.virtual_shards is None and config.reduction == "fast"


def check_resize(strategy: Strategy, env: WorkerEnv, earlier: CheckpointManifest | None) -> None:
    """Raises InputError where the strategy cannot go on from a checkpoint of another world size.

    A checkpoint of another strategy is accepted at any size.
    """
    if earlier is None or strategy.can_resize or earlier.world_size == env.world_size:
        return
    if earlier.trainer.get("strategy") == strategy.name:
        raise InputError(
            f"--strategy {strategy.name} cannot go on with another number of processes: "
            f"{earlier.world_size} wrote the checkpoint of step {earlier.step}, "
            f"and now there are {env.world_size}",
            f"start as many as {earlier.world_size}, or go on with --strategy ddp",
        )


def open_saver(config: TrainConfig, env: WorkerEnv, say: Callable[[str], None]) -> Saver:
    """The saver that the options ask for; all ranks must call it."""
    folder = choose_checkpoint_dir(config, env)
    saver = Saver(
        folder,
        keep=Keep(
            last=config.keep_checkpoints,
            best=config.keep_best,
            every_steps=config.keep_every_steps,
        ),
        interval=plan_interval(config),
        asynchronous=config.checkpoint_async,
        say=say,
    )
    saver.may_differ = frozenset({"virtual_shards"} if may_replan_shards(config) else ())
    return saver


def plan_interval(config: TrainConfig) -> Interval:
    """How often checkpoints are written, by the options."""
    return Interval(
        steps=config.checkpoint_every_steps,
        seconds=config.checkpoint_every_s,
        mtbf_s=config.mtbf_s,
    )


def choose_checkpoint_dir(config: TrainConfig, env: WorkerEnv) -> Path:
    """The folder for checkpoints, in the order that the option's description gives."""
    named = config.checkpoint_dir or env.checkpoint_dir
    if named:
        return named
    if env.run_dir:
        return env.run_dir / CHECKPOINTS_DIR
    # With a fixed folder the second `python -m train` on a laptop would resume the first.
    return Path("runs/train") / datetime.now().strftime("%Y%m%d-%H%M%S") / CHECKPOINTS_DIR
