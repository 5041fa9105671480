"""Builds data, model and optimizer from the options and the world; which facts besides options a
resumed training must share.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fabric_train.breakdown import measure_utilization
from fabric_train.checkpointing.manifest import CheckpointManifest
from fabric_train.checkpointing.saver import Saver
from fabric_train.checkpointing.state import TrainState, digest_weights
from fabric_train.checkpointing.transfer import freeze, group_weights, read_pretrained
from fabric_train.determinism import read_environment
from fabric_train.errors import InputError
from fabric_train.launch.precision import convert_model
from fabric_train.loop.continuity import Continuity
from fabric_train.loop.ledger import Ledger
from fabric_train.loop.preemption import ignore_sigterm
from fabric_train.ranks import rank_zero_first
from fabric_train.sampling.augmentation import Augmented, shift
from fabric_train.sampling.sampler import GlobalBatchSampler, fingerprint_tensors
from fabric_train.strategies import make_strategy
from fabric_train.strategies.ddp import sync_batch_norm
from fabric_train.strategies.strategy import Strategy, find_place
from fabric_train.worker_env import WorkerEnv
from fabric_train.worlds import TrainingWorld
from train.config import TrainConfig
from train.resume import fingerprint, plan_interval
from train.schedule import Schedule, plan_batch_size, plan_schedule
from train.workloads import WORKLOADS, Workload

PRETRAINED_FILE = "pretrained.pt"
"""The file of pretrained weights, beside the checkpoints, which hold only trained ones."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a process takes from one world into the next."""

    data: tuple[TensorDataset, TensorDataset, TensorDataset]
    state: TrainState
    saver: Saver
    virtual_shards: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one start of the training works with, on this rank.

    ``state`` holds the model without wrappers; the strategy has the one to call.
    """

    config: TrainConfig
    env: WorkerEnv
    fabric: Fabric
    schedule: Schedule
    state: TrainState
    strategy: Strategy
    sampler: GlobalBatchSampler
    loader: DataLoader[list[torch.Tensor]]
    generator: torch.Generator
    data: tuple[TensorDataset, TensorDataset, TensorDataset]
    """For training, validation and test."""
    workload: Workload
    continuity: Continuity
    ledger: Ledger
    world: TrainingWorld

    @cached_property
    def utilization(self) -> float:
        """The share of all devices' peak that one sample per second uses; 0 if unknown."""
        return measure_utilization(
            lambda: self.workload.build_model(self.config),
            self.test_set.tensors[0][:1],
            self.fabric.device,
            self.config.precision,
            self.fabric.world_size,
        )

    @property
    def val_set(self) -> TensorDataset:
        return self.data[1]

    @property
    def test_set(self) -> TensorDataset:
        return self.data[2]

    @property
    def is_frozen(self) -> bool:
        """Whether the pretrained weights stay as they are in this part of the training."""
        return not all(weight.requires_grad for weight in self.state.model.parameters())

    @property
    def lr_shares(self) -> tuple[float, float]:
        """What the learning rate is multiplied by: for new weights, and for pretrained ones."""
        return 1.0, self.config.unfreeze_lr / self.config.lr

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.fabric.global_rank == 0

    def say(self, text: str) -> None:
        """Prints on rank 0."""
        if self.leads:
            say(text)


def say(text: str) -> None:
    """Prints and flushes in one write."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def build(
    config: TrainConfig,
    world: TrainingWorld,
    fabric: Fabric,
    saver: Saver,
    ledger: Ledger,
    strategy: Strategy,
    virtual_shards: int,
    earlier: CheckpointManifest | None = None,
    kept: Kept | None = None,
) -> Run:
    """Data and a model, with the same weights on every rank; ``earlier`` will be loaded.

    In a world where some rank has a state, all go on from that one. ``kept`` is this rank's own.
    """
    if config.reduction != "scaled":  # scaled: the shards follow the world
        config = dataclasses.replace(config, virtual_shards=virtual_shards)
    fabric.seed_everything(config.seed, workers=True, verbose=False)
    workload = WORKLOADS[config.workload]
    data = kept.data if kept else load_data(config, workload, alone=world.is_live)
    train_set = data[0]
    replicas = strategy.count_replicas(fabric.world_size)
    sampler = GlobalBatchSampler(
        size=len(train_set),
        global_batch_size=plan_batch_size(config, replicas),
        virtual_shards=virtual_shards,
        rank=strategy.replica_of(fabric.global_rank, fabric.world_size),
        world_size=replicas,
        seed=config.seed,
        with_epochs=config.shift_images,
    )
    generator = torch.Generator()
    cut = {"virtual_shards": virtual_shards}
    if kept:
        state = go_on(strategy, kept.state, world, fabric, **cut)
    else:
        model, pretrained = build_model(config, workload, fabric, saver, earlier)
        state = set_up(config, strategy, model, pretrained, world, fabric, **cut)
        facts = read_facts(config, fabric, train_set, strategy, pretrained)
        saver.config, saver.only_trained = {**fingerprint(config), **facts}, bool(pretrained)
    each_epoch = config.keep_best or plan_interval(config).is_chosen
    return Run(
        config=config,
        env=world.env,
        fabric=fabric,
        schedule=plan_schedule(config, epoch_samples=len(train_set), world_size=replicas),
        state=state,
        strategy=strategy,
        sampler=sampler,
        loader=build_loader(config, fabric, train_set, sampler, generator),
        generator=generator,
        data=data,
        workload=workload,
        continuity=Continuity(
            world.env, state, saver, ledger, each_epoch=each_epoch, strategy=strategy
        ),
        ledger=ledger,
        world=world,
    )


def set_up(
    config: TrainConfig,
    strategy: Strategy,
    model: nn.Module,
    pretrained: Mapping[str, torch.Tensor],
    world: TrainingWorld,
    fabric: Fabric,
    *,
    virtual_shards: int,
) -> TrainState:
    """A new model under the strategy; in a world that goes on, with the state of the others."""
    if not strategy.places_model:
        fabric.to_device(model)

    def make(weights: Iterable[nn.Parameter]) -> AdamW:
        bare = model if world.is_live else strategy.bare
        return build_optimizer(config, group_weights(weights, bare, pretrained))

    if world.is_live:
        state = TrainState(model=model, optimizer=make(model.parameters()), scaler=strategy.scaler)
        return go_on(strategy, state, world, fabric, virtual_shards=virtual_shards)
    place = find_place(fabric.device, world.env.world)
    _, optimizer = strategy.setup(model, make, place, virtual_shards=virtual_shards)
    return TrainState(model=strategy.bare, optimizer=optimizer, scaler=strategy.scaler)


def go_on(
    strategy: Strategy,
    state: TrainState,
    world: TrainingWorld,
    fabric: Fabric,
    *,
    virtual_shards: int,
) -> TrainState:
    """The state of the rank that has the newest one, and the strategy around it."""
    world.share(state.model, state.optimizer, state)
    place = find_place(fabric.device, world.env.world)
    place = dataclasses.replace(place, has_equal_weights=True)
    strategy.scaler, strategy.steps = state.scaler, state.step
    strategy.setup(state.model, lambda _: state.optimizer, place, virtual_shards=virtual_shards)
    return state


def build_model(
    config: TrainConfig,
    workload: Workload,
    fabric: Fabric,
    saver: Saver,
    earlier: CheckpointManifest | None,
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model of the options, and its pretrained weights by name."""
    model, pretrained = workload.build_model(config), dict[str, torch.Tensor]()
    if pretrain := getattr(workload, "pretrain", None):
        path = saver.store.folder / PRETRAINED_FILE
        pretrained = read_pretrained(path, lambda: pretrain(config), saver.ranks)
        model.load_state_dict(pretrained, strict=False)
        if not is_unfrozen(config, earlier):
            freeze(model, pretrained)
    if config.sync_batchnorm:
        model = sync_batch_norm(model, fabric.device, fabric.world_size)
    model = convert_model(model, config.precision)
    if config.compile:
        # In place, so that no name in a checkpoint changes. Module.compile does not look into a
        # model that is a Sequential itself.
        model.forward = torch.compile(model.forward)
    return model, pretrained


def build_optimizer(config: TrainConfig, groups: list[dict[str, Any]]) -> AdamW:
    """The optimizer of these groups of weights."""
    return AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=True)


def is_unfrozen(config: TrainConfig, earlier: CheckpointManifest | None) -> bool:
    """Whether the next step trains the pretrained weights too."""
    step = earlier.step if earlier else 0
    return config.unfreeze_at_step is not None and step >= config.unfreeze_at_step


def load_data(
    config: TrainConfig, workload: Workload, *, alone: bool = False
) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """The training set, the validation set (the last training samples) and the test set.

    All ranks must call it, or each one ``alone``.
    """
    with nullcontext() if alone else rank_zero_first():
        dataset, test_set = workload.load(config)
    size = len(dataset) - round(len(dataset) * config.val_share)
    if config.val_share and size == len(dataset):
        raise InputError(
            f"--val_share {config.val_share} keeps back none of {size} samples",
            f"--val_share {1 / size:.2g} or more",
        )
    first, last = (
        TensorDataset(*(tensor[part] for tensor in dataset.tensors))
        for part in (slice(0, size), slice(size, None))
    )
    return first, last, test_set


def augment(config: TrainConfig, dataset: TensorDataset) -> Dataset[Any]:
    """The training set, augmented if asked; raises InputError if it has no images."""
    if not config.shift_images:
        return dataset
    if config.workload != "digits":
        raise InputError(
            f"--shift_images: workload={config.workload} has no images", "leave --shift_images out"
        )
    return Augmented(dataset, shift, seed=config.seed)


def choose_strategy(config: TrainConfig) -> Strategy:
    """The strategy of the options. Raises InputError if it does not support the reduction."""
    strategy = make_strategy(config.strategy, config.strategy_options)
    if config.reduction != "exact":
        return strategy
    if not strategy.is_exact:
        raise InputError(
            f"--strategy {config.strategy}: its sums depend on the number of processes",
            "--strategy ddp for reduction exact, or --reduction fast",
        )
    return make_strategy(config.strategy, {**config.strategy_options, "exact": True})


def read_facts(
    config: TrainConfig,
    fabric: Fabric,
    dataset: TensorDataset,
    strategy: Strategy,
    pretrained: Mapping[str, torch.Tensor],
) -> dict[str, str]:
    """What a checkpoint and the run that resumes it must share besides the options."""
    facts = {"dataset": fingerprint_tensors(dataset.tensors), **strategy.facts()}
    if pretrained:
        facts["pretrained"] = digest_weights(pretrained)
    if config.reduction == "exact":
        facts |= read_environment(fabric.device)
    return facts


def build_loader(
    config: TrainConfig,
    fabric: Fabric,
    dataset: TensorDataset,
    sampler: GlobalBatchSampler,
    generator: torch.Generator,
) -> DataLoader[list[torch.Tensor]]:
    """Batches on this rank's device; ``generator`` seeds the worker processes."""
    loader = DataLoader(
        augment(config, dataset),
        # With batch_size None the data set gets a batch's list of indices in one call.
        batch_size=None,
        sampler=sampler,
        num_workers=config.num_workers,
        worker_init_fn=ignore_sigterm,
        generator=generator,
        pin_memory=fabric.device.type == "cuda",
    )
    return cast(
        "DataLoader[list[torch.Tensor]]",
        fabric.setup_dataloaders(loader, use_distributed_sampler=False),
    )
