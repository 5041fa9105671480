"""The training from start to end: build, resume, fit, test, report."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from train.checkpoint import Checkpoint, CheckpointStore
from train.config import TrainConfig
from train.environment import make_deterministic, read_environment
from train.errors import DivergedError, InputError
from train.evaluation import evaluate
from train.progress import Meter, Progress
from train.randomness import capture_generators, derive_seed, seed_generators
from train.reduction import ExactReduction, FastReduction, align
from train.report import (
    Metrics,
    format_hardware_table,
    format_summary,
    read_rank_device,
    read_versions,
    write_metrics,
)
from train.sampler import (
    GlobalBatchSampler,
    fingerprint_tensors,
    plan_rank_shards,
    plan_shard_size,
)
from train.schedule import Schedule, plan_schedule
from train.state import TrainState, capture_state, check_fits, digest_weights, restore_state
from train.strategies import gather, launch_fabric, leave_world
from train.worker_env import CHECKPOINTS_DIR, WorkerEnv
from train.workloads import WORKLOADS

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one start of the training works with, on this rank.

    ``state`` holds the bare model; ``model`` is the one to call, which DDP may wrap.
    """

    config: TrainConfig
    env: WorkerEnv
    fabric: Fabric
    schedule: Schedule
    state: TrainState
    model: nn.Module
    reduction: FastReduction | ExactReduction
    facts: dict[str, str]
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
    plan_shard_size(config.global_batch_size, config.virtual_shards)
    plan_rank_shards(config.virtual_shards, 0, env.world_size)
    run = build(config, env)
    show_hardware(run)
    resumed_from_step, checkpoint = resume(run)

    meter = Meter()
    checkpoint = fit(run, meter, build_progress(run, meter)) or checkpoint
    scores = evaluate(run.fabric, run.state.model, run.test_set, run.num_classes)

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
        "weights_sha256": digest_weights(run.state.model),
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
        virtual_shards=config.virtual_shards,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        seed=config.seed,
    )
    generator = torch.Generator()
    bare_model = fabric.to_device(workload.build_model())
    optimizer = AdamW(
        bare_model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    model, reduction = build_reduction(config, fabric, bare_model)
    return Run(
        config=config,
        env=env,
        fabric=fabric,
        schedule=plan_schedule(config, sampler.batches_per_epoch),
        state=TrainState(model=bare_model, optimizer=optimizer),
        model=model,
        reduction=reduction,
        facts=read_facts(config, fabric, train_set),
        sampler=sampler,
        loader=build_loader(fabric, train_set, sampler, generator, config.num_workers),
        generator=generator,
        test_set=test_set,
        num_classes=workload.NUM_CLASSES,
        store=CheckpointStore(choose_checkpoint_dir(config, env), keep=config.keep_checkpoints),
    )


def build_reduction(
    config: TrainConfig, fabric: Fabric, model: nn.Module
) -> tuple[nn.Module, FastReduction | ExactReduction]:
    """The model to call, and what becomes of its gradients."""
    shards, world_size = config.virtual_shards, fabric.world_size
    if config.reduction == "exact":
        make_deterministic()
        return model, ExactReduction(
            model, virtual_shards=shards, rank=fabric.global_rank, world_size=world_size
        )
    # The strategy's and not Fabric's wrapper, whose backward is for one loss and one sync.
    model = fabric.strategy.setup_module(model)
    return model, FastReduction(model, virtual_shards=shards, world_size=world_size)


def read_facts(config: TrainConfig, fabric: Fabric, dataset: TensorDataset) -> dict[str, str]:
    """What a checkpoint must share with the run that resumes it, beside the options."""
    facts = {"dataset": fingerprint_tensors(dataset.tensors)}
    if config.reduction == "exact":
        facts |= read_environment(fabric.device)
    return facts


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
        check_fits(found.payload, run.state, run.config, run.facts)
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
        stop_step = min(schedule.end_of(epoch), schedule.stop_step)
        batches = iter(seek(run, epoch=epoch, stop_step=stop_step))
        first_step = state.step
        loss_sum = torch.zeros((), device=fabric.device)
        while state.step < stop_step:
            for group in state.optimizer.param_groups:
                group["lr"] = schedule.lr_at(state.step)
            loss = take_step(run, batches)
            state.step += 1
            loss_sum += loss  # summed on the device: reading it here would wait for it
            if not meter.steps and fabric.device.type == "cuda":
                torch.cuda.synchronize()  # or the first step would count when it is only queued
            meter.on_step()
            progress.on_step(state.step, loss)
        # Shards may be shared unequally: a rank's mean counts for as many as it has.
        share = len(run.sampler.shards) * fabric.world_size / run.config.virtual_shards
        mean_loss = average(fabric, loss_sum * share / (state.step - first_step))
        state.train_loss = check_finite(mean_loss, state.step)
        progress.on_epoch_end(state.step, state.train_loss)
        checkpoint = save(run, epoch)
    meter.stop()
    progress.close()
    return checkpoint


def take_step(run: Run, batches: Iterator[list[torch.Tensor]]) -> torch.Tensor:
    """One optimizer step over this rank's virtual shards, and the mean of their losses."""
    config, shards = run.config, run.sampler.shards
    loss_sum = torch.zeros((), device=run.fabric.device)
    for shard in shards:
        inputs, targets = next(batches)
        if config.reduction == "exact":
            inputs, targets = align((inputs, targets))
        # Keyed by place and not carried on: a shard drops the same units on whichever rank.
        seed_generators(config.seed, run.state.step, shard)
        with run.reduction.sync(last=shard == shards[-1]):
            with run.fabric.autocast():
                outputs = run.model(inputs)
            loss = cross_entropy(outputs.float(), targets)
            run.reduction.backward(loss, shard)
        loss_sum += loss.detach()
    run.reduction.finish()
    if config.max_grad_norm:
        clip_grad_norm_(run.state.model.parameters(), config.max_grad_norm)
    run.state.optimizer.step()
    run.state.optimizer.zero_grad(set_to_none=True)
    return loss_sum / len(shards)


def seek(run: Run, *, epoch: int, stop_step: int) -> DataLoader[list[torch.Tensor]]:
    """The loader from this step on, with workers seeded for this epoch and rank."""
    run.sampler.seek(first_step=run.state.step, stop_step=stop_step)
    run.generator.manual_seed(derive_seed(run.config.seed, epoch, run.fabric.global_rank))
    return run.loader


def save(run: Run, epoch: int) -> Path | None:
    """Commits the state, on rank 0 alone; all ranks must call it, for their generators' states."""
    generators = gather(capture_generators(run.fabric.device))
    if not run.leads:
        return None
    return run.store.write(
        capture_state(run.state, run.config, epoch=epoch, generators=generators, facts=run.facts)
    )


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
