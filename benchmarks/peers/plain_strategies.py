"""Strategies as one writes it with PyTorch alone: the peer of ``strategies``.

Model, data, micro-batches, order of the samples, optimizer and learning rates are those of
``python -m train --workload charlm``, and so are the losses, as a test compares. A function for
each strategy builds what it needs and returns the step: inputs and targets to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd_hooks
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from fabric_train.sampling.sampler import GlobalBatchSampler
from train.config import TrainConfig
from train.schedule import plan_schedule
from train.workloads import charlm

Step = Callable[[Tensor, Tensor], Tensor]
BuildOptimizer = Callable[[Any], Optimizer]

POWERSGD_AFTER = 2
"""Steps that are sent whole, the fewest that torch allows."""
TENSOR_RANKS = 2


def train(name: str, config: TrainConfig, after_step: Callable[[Tensor], None]) -> None:
    """Trains for ever; ``after_step`` gets each step's loss, and ends it."""
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    train_set, _ = charlm.load(config)
    build = STRATEGIES[name]
    replicas = count_replicas(name)
    sampler = GlobalBatchSampler(
        size=len(train_set),
        global_batch_size=config.global_batch_size,
        virtual_shards=replicas,
        rank=dist.get_rank() * replicas // dist.get_world_size(),
        world_size=replicas,
        seed=config.seed,
    )
    loader = DataLoader(train_set, batch_size=None, sampler=sampler)
    schedule = plan_schedule(config, epoch_samples=len(train_set), world_size=replicas)
    optimizers: list[Optimizer] = []

    def build_optimizer(weights: Any) -> Optimizer:
        optimizer = AdamW(weights, lr=config.lr, weight_decay=config.weight_decay, fused=True)
        optimizers.append(optimizer)
        return optimizer

    step = build(charlm.build_model(config), build_optimizer)
    sampler.seek(first_step=0, stop_step=schedule.stop_step)
    for number, (inputs, targets) in enumerate(loader):
        for group in optimizers[0].param_groups:
            group["lr"] = schedule.lr_at(number)
        after_step(step(inputs, targets))


def count_replicas(name: str) -> int:
    """How many parts of the world take different samples."""
    world_size = dist.get_world_size()
    if name in ("tp", "pipeline"):
        return 1
    return max(1, world_size // TENSOR_RANKS) if name == "fsdp+tp" else world_size


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


def step_once(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Forward pass, backward pass, optimizer."""
    loss = mean_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def wrap(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(
        model, gradient_as_bucket_view=True, broadcast_buffers=False, **options
    )


def build_ddp(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    ddp = wrap(model)
    return partial(step_once, ddp, build_optimizer(ddp.parameters()))


def build_fp16(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    ddp = wrap(model)
    ddp.register_comm_hook(None, fp16_compress_hook)
    return partial(step_once, ddp, build_optimizer(ddp.parameters()))


def build_powersgd(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    if dist.get_world_size() == 1:
        # Nobody compresses what goes nowhere, but the hook would.
        return build_ddp(model, build_optimizer)
    # Over gloo torch's hook mixes up the messages of several buckets, and fails (torch 2.13).
    ddp = wrap(model, bucket_cap_mb=100)
    state = powersgd_hooks.PowerSGDState(None, start_powerSGD_iter=POWERSGD_AFTER)
    ddp.register_comm_hook(state, powersgd_hooks.powerSGD_hook)
    return partial(step_once, ddp, build_optimizer(ddp.parameters()))


def build_fsdp(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    return shard(model, build_optimizer, init_device_mesh("cpu", (dist.get_world_size(),)))


def shard(model: nn.Module, build_optimizer: BuildOptimizer, mesh: DeviceMesh) -> Step:
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return partial(step_once, model, build_optimizer(model.parameters()))


def build_tp(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    split(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    # The fused update takes no mixture of split and whole weights.
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for weight in model.parameters():
        groups[isinstance(weight, DTensor)].append(weight)
    optimizer = build_optimizer([{"params": group} for group in groups.values()])
    return partial(step_once, model, optimizer)


def build_fsdp_tp(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    mesh = init_device_mesh(
        "cpu", (count_replicas("fsdp+tp"), TENSOR_RANKS), mesh_dim_names=("data", "tensor")
    )
    split(model, mesh["tensor"])
    return shard(model, build_optimizer, mesh["data"])


def split(model: nn.Module, mesh: DeviceMesh) -> None:
    """Heads and inner units over the processes of the mesh."""
    for block in model.get_submodule("blocks").children():
        project = block.get_submodule("attention.project")
        with torch.no_grad():
            # The queries, keys and values of a process side by side, as its part is cut out.
            for weight in project.parameters():
                parts = weight.unflatten(0, (3, mesh.size(), -1)).transpose(0, 1)
                weight.copy_(parts.flatten(0, 2).clone())
        plan = {
            "attention.project": ColwiseParallel(),
            "attention.onto_residual": RowwiseParallel(),
            "feed_forward.widen": ColwiseParallel(),
            "feed_forward.onto_residual": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan)


class PipelinePart(nn.Module):
    """The blocks of one process, and the embedding or the output beside them."""

    def __init__(self, model: Any, rank: int, ranks: int) -> None:
        super().__init__()
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        blocks = list(model.blocks)
        self.blocks = nn.Sequential(
            *blocks[rank * len(blocks) // ranks : (rank + 1) * len(blocks) // ranks]
        )
        self.characters = model.characters if self.is_first or self.is_last else None
        self.positions = model.positions if self.is_first else None
        self.norm = model.norm if self.is_last else None

    def forward(self, states: Tensor) -> Tensor:
        if self.is_first:
            places = torch.arange(states.shape[1])
            states = self.characters(states) + self.positions(places)  # type: ignore[misc]
        states = self.blocks(states)
        if self.is_last:
            states = linear(self.norm(states), self.characters.weight)  # type: ignore[misc, union-attr]
        return states


def build_pipeline(model: nn.Module, build_optimizer: BuildOptimizer) -> Step:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return partial(step_once, model, build_optimizer(model.parameters()))
    part = PipelinePart(model, rank, ranks)
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2 * ranks, loss_fn=mean_loss)
    optimizer = build_optimizer(part.parameters())
    ends = dist.new_group([0, ranks - 1])

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        if part.characters is not None:
            dist.all_reduce(part.characters.weight.grad, group=ends)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        # All ranks report the loss, as on the other side.
        dist.broadcast(loss, ranks - 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


STRATEGIES: dict[str, Callable[[nn.Module, BuildOptimizer], Step]] = {
    "ddp": build_ddp,
    "fsdp": build_fsdp,
    "tp": build_tp,
    "fsdp+tp": build_fsdp_tp,
    "pipeline": build_pipeline,
    "powersgd": build_powersgd,
    "fp16": build_fp16,
}
