"""The training from start to end: build, resume, fit, test, report; when it stops early, and
whether it goes on when a node is lost.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from fabric_train.breakdown import Breakdown
from fabric_train.checkpointing.manifest import CheckpointManifest
from fabric_train.checkpointing.state import digest_weights
from fabric_train.communication.reduction import align
from fabric_train.determinism import derive_seed, seed_generators
from fabric_train.errors import InputError
from fabric_train.launch.fabric import choose_accelerator, launch_fabric, leave_world
from fabric_train.launch.precision import set_precision
from fabric_train.launch.processes import launch_processes
from fabric_train.loop.continuity import check_finite
from fabric_train.loop.ledger import Ledger, Planned, TrainEnded, TrainStarted, open_ledger
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies.ddp import DdpSpawn
from fabric_train.strategies.strategy import RankBatch, Strategy
from fabric_train.worker_env import WorkerEnv
from fabric_train.worlds import TrainingWorld, Worlds
from train.build import Kept, Run, build, choose_strategy, say
from train.config import TrainConfig
from train.epoch_loss import EpochLoss
from train.evaluation import PREDICTIONS_FILE, evaluate, predict
from train.metrics import Metrics, format_summary, write_metrics
from train.progress import Meter, Progress
from train.report import format_hardware_table, read_rank_device, read_versions
from train.resume import check_resize, choose_virtual_shards, may_replan_shards, open_saver
from train.sanity import try_all_parts
from train.seeing import begin_breakdown, log_epoch, log_step, open_log, plan_profile


def train(
    config: TrainConfig, env: WorkerEnv, ledger: Ledger | None = None, verb: str = "fit"
) -> Metrics:
    """Trains to the end, tests, and returns what rank 0 writes to metrics.json.

    With another ``verb`` it loads the newest checkpoint, validates, tests or predicts with it, and
    returns the scores only.

    Blocks; all ranks return the same scores. Raises InputError on all ranks for wrong input.
    """
    strategy = choose_strategy(config)
    if isinstance(strategy, DdpSpawn) and verb != "fit":
        raise InputError(f"{verb}: not with --strategy ddp_spawn", "--strategy ddp")
    if isinstance(strategy, DdpSpawn):
        open_ledger(env).write(TrainStarted(world_size=env.world_size, generation=env.generation))
        return launch_processes(
            train_in_process,
            env,
            config,
            strategy=strategy,
            accelerator=config.accelerator,
            precision=config.precision,
        )
    metrics = train_in_worlds(config, env, ledger, verb)
    # Only here is every reference to the process group gone, as leave_world needs.
    leave_world()
    return metrics


@dataclass
class Course:
    """What one process measures and keeps over all parts and worlds of its training."""

    began_at: float = field(default_factory=time.monotonic)
    meter: Meter = field(default_factory=Meter)
    resumed_from_step: int | None = None
    kept: Kept | None = None
    losses: EpochLoss | None = None
    ledger: Ledger | None = None


def train_in_process(fabric: Fabric, env: WorkerEnv, config: TrainConfig) -> Metrics:
    """The training in a process that ``launch_processes`` has started."""
    worlds = Worlds(env, in_place=False)
    return train_in_world(
        config, worlds, TrainingWorld(worlds, env), Course(ledger=open_ledger(env)), fabric
    )


def train_in_worlds(
    config: TrainConfig, env: WorkerEnv, ledger: Ledger | None, verb: str
) -> Metrics:
    """The whole training, in one world after the other; leaves the last process group open."""
    strategy, course = choose_strategy(config), Course(ledger=ledger)
    # Before the process group, so that a wrong batch size is refused without waiting for nodes.
    replicas = strategy.count_replicas(env.world_size)
    plan_rank_shards(choose_virtual_shards(config, env, strategy, None), 0, replicas)
    device = choose_accelerator(config.accelerator, env.world)
    worlds = Worlds(
        env,
        backend="nccl" if device == "cuda" else "gloo",
        in_place=verb == "fit" and can_heal(config, strategy),
    )
    for world in worlds:
        with world:
            if course.ledger is None or world.rank != (env.world.rank if env.world else 0):
                course.ledger = open_ledger(world.env)
            env = world.env
            if verb == "fit":
                size, generation = env.world_size, env.generation
                heals = world.is_live
                course.ledger.write(
                    TrainStarted(world_size=size, generation=generation, heals=heals)
                )
            metrics = train_in_world(config, worlds, world, course, verb=verb)
    return metrics


def can_heal(config: TrainConfig, strategy: Strategy) -> bool:
    """Whether the training goes on in the same processes when a node is lost or comes."""
    is_whole = strategy.heals and config.workload != "transfer" and not config.sync_batchnorm
    return is_whole and config.reduction != "scaled"


def train_in_world(
    config: TrainConfig,
    worlds: Worlds,
    world: TrainingWorld,
    course: Course,
    fabric: Fabric | None = None,
    verb: str = "fit",
) -> Metrics:
    """The training in one world, with ``fabric`` if given."""
    while True:
        strategy = choose_strategy(config)
        try:
            if fabric is None:
                fabric = launch_fabric(
                    world.env,
                    accelerator=config.accelerator,
                    precision=config.precision,
                    strategy=strategy,
                )
            else:
                set_precision(strategy, config.precision, fabric.device.type)
            metrics = train_by(strategy, config, worlds, world, fabric, verb, course)
        finally:
            strategy.close()
        if metrics is not None:
            return metrics
        # The training goes on from a checkpoint, because no strategy can add weights to train.


def train_by(
    strategy: Strategy,
    config: TrainConfig,
    worlds: Worlds,
    world: TrainingWorld,
    fabric: Fabric,
    verb: str,
    course: Course,
) -> Metrics | None:
    """Trains with one strategy; returns None if the training goes on with more weights."""
    assert course.ledger
    env, ledger = world.env, course.ledger
    kept, earlier = course.kept if world.is_live else None, None
    if kept:
        saver = kept.saver
    else:
        saver = open_saver(config, env, say if fabric.global_rank == 0 else lambda text: None)
        saver.newest_generation, saver.check_world = worlds.newest_generation, worlds.check
    if world.is_live:
        saver.take_over()
    open_log(config, saver, say)
    if world.is_live:
        shards = world.from_source(kept.virtual_shards if kept else 0)
        settle_losses(course, world)
    else:
        earlier = saver.look()
        if verb != "fit" and earlier is None:
            raise InputError(
                f"{verb}: no checkpoint in {saver.store.folder}", "--checkpoint_dir FOLDER"
            )
        check_resize(strategy, env, earlier)
        shards = choose_virtual_shards(config, env, strategy, earlier)
        if config.sanity_pass and verb == "fit" and earlier is None:
            try_all_parts(config, world, fabric, shards, take_first_step)
    run = build(config, world, fabric, saver, ledger, strategy, shards, earlier, kept)
    if verb != "fit":
        return score_checkpoint(run, verb)
    course.kept = Kept(data=run.data, state=run.state, saver=saver, virtual_shards=shards)
    if not world.is_live:
        if course.resumed_from_step is None:
            show_hardware(run)
        describe(run, shards, earlier)
    try:
        resumed_from_step, checkpoint = resume(run)
        worlds.step = run.state.step
        if course.resumed_from_step is None:
            course.resumed_from_step = resumed_from_step
        schedule = run.schedule.anchored(run.state.step, run.state.sample)
        if run.is_frozen:
            schedule = schedule.cut(config.unfreeze_at_step)
        run = replace(run, schedule=schedule)
        checkpoint = fit(run, course, build_progress(run, course.meter)) or checkpoint
    finally:
        run.continuity.close()
    if run.is_frozen and not has_stopped(run) and run.state.step == config.unfreeze_at_step:
        run.say(f"the pretrained weights are trained too, from step {run.state.step} on")
        return None
    return finish(run, course, checkpoint)


def settle_losses(course: Course, world: TrainingWorld) -> None:
    """Adds to the epoch's loss what the ranks that are left know of its last steps."""
    losses, course.losses = course.losses, None
    losses_of_ranks = world.ranks.gather(losses.pending() if losses else None)
    known = [loss for loss in losses_of_ranks if loss is not None]
    if losses:
        losses.settle(sum(known) / len(known))


def finish(run: Run, course: Course, checkpoint: Path | None) -> Metrics:
    """Tests, writes metrics.json and prints a summary."""
    strategy, meter = run.strategy, course.meter
    metrics: Metrics = {
        **evaluate(run.fabric, strategy, run.test_set, run.workload),
        "train_loss": run.state.to_json()["train_loss"],
        "duration_s": time.monotonic() - course.began_at,
        "fit_s": meter.elapsed_s,
        "samples_per_s": meter.steps_per_s * run.schedule.batch_size,
        "mfu": run.utilization * meter.steps_per_s * run.schedule.batch_size or None,
        "median_step_s": meter.median_step_s,
        "first_step_at": meter.first_step_at,
        "steps": run.state.step,
        "skipped_steps": strategy.scaler.skipped if strategy.scaler else 0,
        "epochs": run.schedule.epoch_of(run.state.step),
        "resumed_from_step": course.resumed_from_step or 0,
        "world_size": run.fabric.world_size,
        "global_batch_size": run.schedule.batch_size,
        "checkpoint": str(checkpoint),
        "weights_sha256": digest_weights(strategy.gather_weights()),
    }
    if run.leads and run.env.run_dir:
        # A full disk must not make a finished training fail.
        with contextlib.suppress(OSError):
            write_metrics(run.env.run_dir, metrics)
    run.ledger.write(TrainEnded(step=run.state.step))
    run.say(format_summary(metrics))
    run.fabric.barrier()
    return metrics


def resume(run: Run) -> tuple[int, Path | None]:
    """Loads the newest checkpoint, if there is one and no rank has a newer state.

    Gives the step to go on from, and the path of the checkpoint.

    Raises InputError, on all ranks, if it belongs to another training.
    """
    plan_profile(run)
    path = run.continuity.go_on() if run.world.is_live else run.continuity.resume()
    step = run.state.step
    stop_step = run.schedule.anchored(step, run.state.sample).stop_step
    run.ledger.write(Planned(step=step, until=stop_step))
    if run.world.is_live:
        return step, path
    if path is not None and step >= stop_step:
        run.say(f"already trained {step} of {stop_step} steps, only tests: {path}")
    elif path is not None:
        run.say(f"resumes after step {step} of {stop_step}: {path}")
    return step, path


def describe(run: Run, shards: int, earlier: CheckpointManifest | None) -> None:
    """Prints a new number of virtual shards, and the strategy's description."""
    before = earlier.config.get("virtual_shards") if earlier else None
    if may_replan_shards(run.config) and before not in (None, shards):
        run.say(f"each batch is cut into {shards} virtual shards, {before} before")
    if description := run.strategy.describe():
        run.say(description)


def score_checkpoint(run: Run, verb: str) -> Metrics:
    """Validates, tests or predicts with the newest checkpoint; returns the scores only."""
    path = run.continuity.load()
    run.say(f"step {run.state.step}: {path}")
    if verb == "predict":
        target = (run.env.run_dir or Path()) / PREDICTIONS_FILE
        predict(run.fabric, run.strategy, run.test_set, run.workload, target)
        run.say(f"{len(run.test_set)} predictions: {target}")
        scores = cast("Metrics", {"test_samples": len(run.test_set)})
    else:
        if verb == "validate" and not len(run.val_set):
            raise InputError("validate: no sample is kept back for it", "--val_share 0.1")
        chosen = run.val_set if verb == "validate" else run.test_set
        scores = cast("Metrics", evaluate(run.fabric, run.strategy, chosen, run.workload))
        what = "validation" if verb == "validate" else "test"
        run.say(
            f"{what} accuracy {scores['test_accuracy']:.4f}, {what} loss {scores['test_loss']:.4f}"
            f" ({scores['test_samples']} samples)"
        )
    run.fabric.barrier()
    return scores


def show_hardware(run: Run) -> None:
    """Prints the hardware table; all ranks must call it."""
    devices = run.continuity.saver.ranks.gather(read_rank_device(run.fabric, run.env))
    run.say(
        format_hardware_table(
            run.config,
            run.env,
            devices,
            batch_size=run.schedule.batch_size,
            virtual_shards=run.sampler.virtual_shards,
            versions=read_versions(),
            checkpoint_dir=run.continuity.saver.store.folder,
        )
    )


def build_progress(run: Run, meter: Meter) -> Progress:
    """A bar or lines on rank 0, as the launcher or the terminal asks; nothing on other ranks."""
    mode = run.env.progress or ("bar" if sys.stderr.isatty() else "lines")
    return Progress(
        mode if run.leads else None,
        run.schedule,
        meter,
        global_batch_size=run.schedule.batch_size,
        utilization=run.utilization,
    )


def fit(run: Run, course: Course, progress: Progress) -> Path | None:
    """Trains up to the schedule's last step, and returns the last checkpoint."""
    state, schedule, meter = run.state, run.schedule, course.meter
    run.strategy.model.train()
    meter.start()
    # The last world may have ended between the last step of an epoch and the epoch's end.
    owes_end = run.world.is_live and has_to_end_epoch(run)
    while owes_end or (state.step < schedule.stop_step and not has_stopped(run)):
        epoch = schedule.epoch_of(state.step - owes_end)
        stop_step = min(schedule.end_of(epoch), schedule.stop_step)
        batches = iter(seek(run, epoch=epoch, stop_step=stop_step))
        losses = course.losses = EpochLoss(run)
        while state.step < stop_step:
            with run.world.step():
                breakdown = begin_breakdown(run)
                loss = take_step(run, batches, breakdown)
                state.step += 1
                state.sample += schedule.batch_size
                losses.add(loss)
            on_step(run, loss, meter, progress)
            log_step(run, loss, meter, losses.average, breakdown)
            if state.step < stop_step:
                run.continuity.after_step(losses.refresh)
        losses.refresh()
        state.train_loss = check_finite(state.epoch_loss / state.epoch_steps, state.step)
        if state.step == schedule.end_of(epoch):
            log_epoch(run, epoch_loss=state.train_loss)
            validate(run)
            state.epoch_loss, state.epoch_steps = 0.0, 0
        progress.on_epoch_end(state.step, state.train_loss)
        run.continuity.on_epoch_end()
        owes_end = False
        if state.step < schedule.stop_step:
            run.continuity.after_step(lambda: None)
    meter.stop()
    progress.close()
    run.ledger.on_trained(state.step, state.train_loss)
    return run.continuity.finish()


def has_to_end_epoch(run: Run) -> bool:
    """Whether the last step of an epoch, or of the training, was made and its loss is not told."""
    state, schedule = run.state, run.schedule
    if not state.step or not state.epoch_steps:
        return False
    last = schedule.end_of(schedule.epoch_of(state.step - 1))
    return state.step in (last, schedule.stop_step)


def has_stopped(run: Run) -> bool:
    """Whether the validation loss has not fallen for as long as ``patience`` allows."""
    return run.config.patience is not None and run.state.stale_epochs >= run.config.patience


def validate(run: Run) -> None:
    """Counts the epochs in which the validation loss did not fall; equal on all ranks."""
    if run.config.patience is None:
        return
    loss = evaluate(run.fabric, run.strategy, run.val_set, run.workload)["test_loss"]
    run.strategy.model.train()
    state = run.state
    state.stale_epochs = 0 if loss < state.best_loss else state.stale_epochs + 1
    state.best_loss = min(loss, state.best_loss)
    log_epoch(run, val_loss=loss)
    run.say(f"validation loss {loss:.4f} after step {state.step}, lowest {state.best_loss:.4f}")
    if has_stopped(run):
        run.say(f"stops early: it has not fallen for {state.stale_epochs} epochs")


def on_step(run: Run, loss: torch.Tensor, meter: Meter, progress: Progress) -> None:
    """Times and reports a step that has ended."""
    if not meter.steps and run.fabric.device.type == "cuda":
        torch.cuda.synchronize()  # otherwise the first step counts when it is only queued
    meter.on_step()
    progress.on_step(run.state.step, loss)
    run.ledger.on_step(run.state.step, run.schedule.batch_size, loss.item)


def take_first_step(run: Run) -> None:
    """The first step of a training; raises DivergedError if its loss is not finite."""
    loss = take_step(run, iter(seek(run, epoch=0, stop_step=1)))
    check_finite(loss.item(), 1)


def take_step(
    run: Run, batches: Iterator[list[torch.Tensor]], breakdown: Breakdown | None = None
) -> torch.Tensor:
    """One optimizer step over this rank's virtual shards; returns the mean of their losses."""
    config, strategy, scaler = run.config, run.strategy, run.strategy.scaler
    for group, share in zip(run.state.optimizer.param_groups, run.lr_shares, strict=False):
        group["lr"] = run.schedule.lr_at(run.state.step) * share
    batch = RankBatch(
        shards=run.sampler.shards,
        # Exact sums need inputs with the same memory alignment.
        batches=map(align, batches) if config.reduction == "exact" else batches,
        loss=mean_loss if scaler is None else lambda *given: scaler.scale(mean_loss(*given)),
        # Seeded for each shard, so that dropout is the same on whichever rank computes it.
        begin=lambda shard: seed_generators(config.seed, run.state.step, shard),
        autocast=run.fabric.autocast,
    )
    loss = strategy.run_step(breakdown.watch(batch) if breakdown else batch)
    if breakdown:
        breakdown.end("backward_s")
    if scaler is not None:
        loss = scaler.unscale_loss(loss)
        scaler.unscale_(strategy.optimizer)
    if config.max_grad_norm:
        strategy.clip(config.max_grad_norm)
    strategy.step(run.state.step)
    if breakdown:
        breakdown.end("optimizer_s")
    return loss


def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean loss over a batch and, for text, over its characters."""
    return cross_entropy(outputs.float().flatten(0, -2), targets.flatten())


def seek(run: Run, *, epoch: int, stop_step: int) -> DataLoader[list[torch.Tensor]]:
    """The loader from the current step on, its workers seeded for this epoch and rank."""
    run.sampler.seek(first_step=run.state.step, stop_step=stop_step, first_sample=run.state.sample)
    run.generator.manual_seed(derive_seed(run.config.seed, epoch, run.fabric.global_rank))
    return run.loader
