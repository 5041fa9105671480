"""What a training works with, made from its options and its world."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from train.checkpoint import CheckpointStore
from train.config import TrainConfig
from train.environment import make_deterministic, read_environment
from train.reduction import ExactReduction, FastReduction
from train.sampler import GlobalBatchSampler, fingerprint_tensors
from train.schedule import Schedule, plan_schedule
from train.state import TrainState
from train.worker_env import CHECKPOINTS_DIR, WorkerEnv
from train.workloads import WORKLOADS


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


def build(
    config: TrainConfig, env: WorkerEnv, fabric: Fabric, store: CheckpointStore, virtual_shards: int
) -> Run:
    """Data and a fresh model; every rank starts with the same weights."""
    config = dataclasses.replace(config, virtual_shards=virtual_shards)
    fabric.seed_everything(config.seed, workers=True, verbose=False)
    workload = WORKLOADS[config.workload]
    with fabric.rank_zero_first(local=True):
        train_set, test_set = workload.load()
    sampler = GlobalBatchSampler(
        size=len(train_set),
        global_batch_size=config.global_batch_size,
        virtual_shards=virtual_shards,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        seed=config.seed,
    )
    generator = torch.Generator()
    bare_model = fabric.to_device(workload.build_model())
    optimizer = AdamW(
        bare_model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    model, reduction = build_reduction(config, fabric, bare_model, virtual_shards)
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
        store=store,
    )


def build_reduction(
    config: TrainConfig, fabric: Fabric, model: nn.Module, shards: int
) -> tuple[nn.Module, FastReduction | ExactReduction]:
    """The model to call, and what becomes of its gradients."""
    world_size = fabric.world_size
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


def choose_checkpoint_dir(config: TrainConfig, env: WorkerEnv) -> Path:
    """The folder for checkpoints, by the order that the option's description gives."""
    named = config.checkpoint_dir or env.checkpoint_dir
    if named:
        return named
    if env.run_dir:
        return env.run_dir / CHECKPOINTS_DIR
    # A fixed folder would make the second `python -m train` on a laptop find the first's work.
    return Path("runs/train") / datetime.now().strftime("%Y%m%d-%H%M%S") / CHECKPOINTS_DIR
