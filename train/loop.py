"""The training from start to end: build, resume, fit, test, report."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from train.checkpoint import Checkpoint, CheckpointStore
from train.config import TrainConfig
from train.errors import DivergedError, InputError
from train.progress import Meter, Progress
from train.randomness import capture_generators, derive_seed, seed_generators
from train.report import (
    Metrics,
    format_hardware_table,
    format_summary,
    read_rank_device,
    read_versions,
    write_metrics,
)
from train.sampler import GlobalBatchSampler, ShardSampler, plan_rank_batch_size
from train.schedule import Schedule, plan_schedule
from train.state import TrainState, capture_state, check_fits, restore_state
from train.strategies import gather, launch_fabric, leave_world
from train.worker_env import CHECKPOINTS_DIR, WorkerEnv
from train.workloads import WORKLOADS

T = TypeVar("T")

TEST_BATCH_SIZE = 512


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one start of the training works with, on this rank.

    ``state`` holds the bare model and optimizer, ``model`` and ``optimizer`` are Fabric's.
    """

    config: TrainConfig
    env: WorkerEnv
    fabric: Fabric
    schedule: Schedule
    state: TrainState
    model: nn.Module
    optimizer: Optimizer
    sampler: GlobalBatchSampler
    loader: DataLoader[list[torch.Tensor]]
    generator: torch.Generator
    test_set: TensorDataset
    num_classes: int
    store: CheckpointStore

    @property
    def leads(self) -> bool:
        """Whether this rank writes and speaks for all."""
        return self.fabric.global_rank == 0

    def say(self, text: str) -> None:
        """Prints on rank 0; at once and in one piece, for whoever reads a pipe."""
        if self.leads:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def train(config: TrainConfig, env: WorkerEnv) -> Metrics:
    """Trains to the end, tests, and gives what rank 0 writes to metrics.json.

    Blocks; all ranks return the same scores. Raises InputError, on all ranks, for what a person can
    put right.
    """
    metrics = train_in_world(config, env)
    # Here and not there: all that holds on to the process group must be gone before it ends.
    leave_world()
    return metrics


def train_in_world(config: TrainConfig, env: WorkerEnv) -> Metrics:
    """The whole training, in a process group that it leaves open."""
    began_at = time.monotonic()
    # Before the process group: a wrong batch size should not wait for other nodes.
    plan_rank_batch_size(config.global_batch_size, env.world_size)
    run = build(config, env)
    show_hardware(run)
    resumed_from_step, checkpoint = resume(run)

    meter = Meter()
    checkpoint = fit(run, meter, build_progress(run, meter)) or checkpoint
    scores = evaluate(run)

    metrics: Metrics = {
        **scores,
        "train_loss": run.state.train_loss,
        "duration_s": time.monotonic() - began_at,
        "fit_s": meter.elapsed_s,
        "samples_per_s": meter.steps_per_s * config.global_batch_size,
        "median_step_s": meter.median_step_s,
        "first_step_at": meter.first_step_at,
        "steps": run.state.step,
        "epochs": run.schedule.epoch_of(run.state.step),
        "resumed_from_step": resumed_from_step,
        "world_size": run.fabric.world_size,
        "global_batch_size": config.global_batch_size,
        "checkpoint": str(checkpoint),
    }
    if run.leads and env.run_dir:
        write_metrics(env.run_dir, metrics)
    run.say(format_summary(metrics))
    run.fabric.barrier()
    return metrics


def build(config: TrainConfig, env: WorkerEnv) -> Run:
    """Fabric, data and a fresh model; every rank starts with the same weights."""
    fabric = launch_fabric(config, env)
    fabric.seed_everything(config.seed, workers=True, verbose=False)
    workload = WORKLOADS[config.workload]
    with fabric.rank_zero_first(local=True):
        train_set, test_set = workload.load()
    sampler = GlobalBatchSampler(
        size=len(train_set),
        global_batch_size=config.global_batch_size,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        seed=config.seed,
    )
    generator = torch.Generator()
    bare_model = workload.build_model()
    bare_optimizer = AdamW(
        bare_model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    model, optimizer = fabric.setup(bare_model, bare_optimizer)
    # From here on the ranks' random numbers differ, or all would drop the same units.
    seed_generators(config.seed, 0, fabric.global_rank)
    return Run(
        config=config,
        env=env,
        fabric=fabric,
        schedule=plan_schedule(config, sampler.batches_per_epoch),
        state=TrainState(model=bare_model, optimizer=bare_optimizer),
        model=model,
        optimizer=optimizer,
        sampler=sampler,
        loader=build_loader(fabric, train_set, sampler, generator, config.num_workers),
        generator=generator,
        test_set=test_set,
        num_classes=workload.NUM_CLASSES,
        store=CheckpointStore(choose_checkpoint_dir(config, env), keep=config.keep_checkpoints),
    )


def build_loader(
    fabric: Fabric,
    dataset: TensorDataset,
    sampler: GlobalBatchSampler,
    generator: torch.Generator,
    num_workers: int,
) -> DataLoader[list[torch.Tensor]]:
    """Batches on this rank's device; the worker processes' seeds follow from ``generator``."""
    loader = DataLoader(
        dataset,
        # With batch_size None a batch is one lookup by a list of indices, not one for each sample.
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        generator=generator,
        pin_memory=fabric.device.type == "cuda",
    )
    return cast(
        "DataLoader[list[torch.Tensor]]",
        fabric.setup_dataloaders(loader, use_distributed_sampler=False),
    )


def show_hardware(run: Run) -> None:
    """Prints what the run computes on; all ranks must call it."""
    devices = gather(read_rank_device(run.fabric, run.env))
    run.say(
        format_hardware_table(
            run.config,
            run.env,
            devices,
            versions=read_versions(),
            checkpoint_dir=run.store.folder,
        )
    )


def build_progress(run: Run, meter: Meter) -> Progress:
    """Rank 0 shows a bar where the launcher or a terminal asks for it; the other ranks nothing."""
    mode = run.env.progress or ("bar" if sys.stderr.isatty() else "lines")
    return Progress(
        mode if run.leads else None,
        run.schedule,
        meter,
        global_batch_size=run.config.global_batch_size,
    )


def resume(run: Run) -> tuple[int, Path | None]:
    """Continues from the newest checkpoint, if any: its step and where it lies.

    Rank 0 reads and hands it to the others, whose nodes need not see the folder.
    """
    found = decide_on_rank_zero(run.fabric, lambda: read_checkpoint(run))
    if found is None:
        return 0, None
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


def read_checkpoint(run: Run) -> Checkpoint | None:
    """The checkpoint to resume from; raises InputError where it is of another training."""
    run.store.open()
    found, skipped = run.store.read_newest()
    for note in skipped:
        run.say(note)
    if found:
        check_fits(found.payload, run.state, run.config)
    return found


def fit(run: Run, meter: Meter, progress: Progress) -> Path | None:
    """Trains up to the schedule's stop and gives the last checkpoint, one at each epoch's end.

    Does nothing where all steps are done.
    """
    fabric, state, schedule = run.fabric, run.state, run.schedule
    checkpoint = None
    run.model.train()
    meter.start()
    while state.step < schedule.stop_step:
        epoch = schedule.epoch_of(state.step)
        seek(run, epoch=epoch, batch=schedule.batch_of(state.step))
        first_step = state.step
        loss_sum = torch.zeros((), device=fabric.device)
        for inputs, targets in islice(run.loader, schedule.stop_step - state.step):
            for group in state.optimizer.param_groups:
                group["lr"] = schedule.lr_at(state.step)
            loss = cross_entropy(run.model(inputs), targets)
            fabric.backward(loss)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)
            state.step += 1
            loss_sum += loss.detach()  # summed on the device: reading it here would wait for it
            if not meter.steps and fabric.device.type == "cuda":
                torch.cuda.synchronize()  # or the first step would count when it is only queued
            meter.on_step()
            progress.on_step(state.step, loss)
        mean_loss = average(fabric, loss_sum / (state.step - first_step))
        state.train_loss = check_finite(mean_loss, state.step)
        progress.on_epoch_end(state.step, state.train_loss)
        checkpoint = save(run, epoch)
    meter.stop()
    progress.close()
    return checkpoint


def seek(run: Run, *, epoch: int, batch: int) -> None:
    """Makes the loader go on there, with workers seeded for this epoch and rank."""
    run.sampler.seek(epoch=epoch, batch=batch)
    run.generator.manual_seed(derive_seed(run.config.seed, epoch, run.fabric.global_rank))


def save(run: Run, epoch: int) -> Path | None:
    """Commits the state, on rank 0 alone; all ranks must call it, for their generators' states."""
    generators = gather(capture_generators(run.fabric.device))
    if not run.leads:
        return None
    return run.store.write(capture_state(run.state, run.config, epoch=epoch, generators=generators))


def average(fabric: Fabric, value: torch.Tensor) -> float:
    """The mean of all ranks' values; waits for the device."""
    return cast("torch.Tensor", fabric.all_reduce(value, reduce_op="mean")).item()


def check_finite(loss: float, step: int) -> float:
    """The loss; raises DivergedError before such a state replaces a good checkpoint."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the training loss is {loss} after step {step}; no checkpoint was written of it. "
            "A lower --lr or a longer --warmup_steps may help"
        )
    return loss


def evaluate(run: Run) -> Metrics:
    """Accuracy and loss over the whole test set, each image counted once in the whole world."""
    fabric = run.fabric
    loader = DataLoader(
        run.test_set,
        batch_size=None,
        sampler=ShardSampler(
            size=len(run.test_set),
            batch_size=TEST_BATCH_SIZE,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        ),
    )
    accuracy = MulticlassAccuracy(run.num_classes, average="micro").to(fabric.device)
    loss = MeanMetric().to(fabric.device)
    samples = SumMetric().to(fabric.device)
    run.model.eval()
    with torch.no_grad():
        for inputs, targets in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
            outputs = run.model(inputs)
            accuracy.update(outputs, targets)
            loss.update(cross_entropy(outputs, targets), weight=len(targets))
            samples.update(len(targets))
    return {
        "test_accuracy": accuracy.compute().item(),
        "test_loss": loss.compute().item(),
        "test_samples": int(samples.compute().item()),
    }


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


def choose_checkpoint_dir(config: TrainConfig, env: WorkerEnv) -> Path:
    """The folder for checkpoints, by the order that the option's description gives."""
    named = config.checkpoint_dir or env.checkpoint_dir
    if named:
        return named
    if env.run_dir:
        return env.run_dir / CHECKPOINTS_DIR
    # A fixed folder would make the second `python -m train` on a laptop find the first's work.
    return Path("runs/train") / datetime.now().strftime("%Y%m%d-%H%M%S") / CHECKPOINTS_DIR
