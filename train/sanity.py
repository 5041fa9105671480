"""A pass through all parts of a training before it begins: a step, a test batch, a checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lightning.fabric import Fabric
from torch.utils.data import TensorDataset

from fabric_train.checkpointing.durable import STAGING_PREFIX
from fabric_train.errors import InputError
from fabric_train.launch.precision import set_precision
from fabric_train.loop.ledger import Ledger
from fabric_train.sampling.pickling import check_picklable
from fabric_train.worlds import TrainingWorld
from train.build import Run, build, choose_strategy, say
from train.config import TrainConfig
from train.evaluation import evaluate
from train.resume import choose_checkpoint_dir, open_saver


def try_all_parts(
    config: TrainConfig,
    world: TrainingWorld,
    fabric: Fabric,
    virtual_shards: int,
    take_step: Callable[[Run], object],
) -> None:
    """Runs one step and one batch of validation or test; writes and reads one checkpoint.

    It makes a model, an optimizer and a loader of its own, throws them away, and deletes its
    folder: the training begins as if there had been no pass. Blocks; all ranks must call it. Raises
    what the training would raise later, with a note that names the part.
    """
    began_at = time.monotonic()
    scratch = choose_checkpoint_dir(config, world.env) / f"{STAGING_PREFIX}sanity"
    trial = replace(config, checkpoint_dir=scratch, checkpoint_async=False)
    strategy = choose_strategy(trial)
    set_precision(strategy, trial.precision, fabric.device.type)
    try:
        saver = open_saver(trial, world.env, say if fabric.global_rank == 0 else lambda text: None)
        with part("loader"):
            run = build(trial, world, fabric, saver, Ledger(None), strategy, virtual_shards)
            # Below Fabric's wrapper, which is no DataLoader.
            check_picklable(vars(run.loader).get("_dataloader", run.loader))
        with part("step"):
            saver.resume(run.state.model, run.state.optimizer, strategy)
            strategy.model.train()
            take_step(run)
        with part("validation"):
            samples = run.val_set if len(run.val_set) else run.test_set
            batch = TensorDataset(*samples[: run.workload.TEST_BATCH_SIZE])
            evaluate(fabric, strategy, batch, run.workload)
        with part("checkpoint"):
            saver.save(1, run.state.model, run.state.optimizer, strategy=strategy, block=True)
            if saver.settle() is None:
                raise InputError(f"no checkpoint could be written to {saver.store.folder.parent}")
            saver.resume(run.state.model, run.state.optimizer, strategy, only_read=True)
    finally:
        strategy.close()
        if fabric.global_rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    run.say(f"sanity pass: all parts work ({time.monotonic() - began_at:.1f} s)")


@contextmanager
def part(name: str) -> Iterator[None]:
    """Adds to an error the part of the pass that raised it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"sanity pass: the {name} failed, before the training began")
        raise
