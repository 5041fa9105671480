"""Fully sharded data parallel (FSDP2): every process holds a part of each weight; also over copies
of a model that tensor parallelism splits.

## fsdp

What it does: weights, gradients and the optimizer's state are cut along their first dimension, one
part for each process. A unit's weights are gathered before its forward pass and again before its
backward pass; its gradients are averaged and cut in the last backward pass of a step. Weights and
losses are those of one process up to rounding. The same code runs on GPUs and on CPUs.

Options: ``reshard``, ``offload``, ``span``, ``units``, ``unit_elements``. With ``--precision
bf16-mixed`` or ``16-mixed`` weights are gathered and used in 16 bits; gradients are averaged, and
weights updated, in 32 bits.

Memory of a process, for P weights of 4 bytes under AdamW and W processes: 16 P / W for its part of
weights, gradients and moments, 4 for each weight of the largest two units and of what is in no
unit, and the activations; one process alone takes 16 P. ``reshard: false`` adds 4 P. With m > 1
micro-batches in a step gradients are kept whole until the last: 4 P more. Each process builds the
whole model before it is cut. With ``offload`` the 16 P / W lie in host memory.

Bytes that a process sends in a step, with m micro-batches (those of the process with most of them):
(W - 1) / W * 4 P * (2 m + 1): each micro-batch gathers twice, the step averages once. What is in no
unit is gathered once per micro-batch. ``reshard: false``: (W - 1) / W * 4 P * 2, as much as DDP.
Weights gathered as bfloat16 count 2 P instead of 4 P. ``span: node``, with N nodes of L processes:
L takes the place of W in all of the above, and each part's gradients travel between nodes:
2 (N - 1) / N * 4 P / L bytes for each process.

Not supported: ``reduction: exact``; weights without a dimension; weights of several types in one
unit; a unit that the model uses without calling it (``units: whole`` allows that).

## fsdp+tp

A mesh of two dimensions: ``tensor_size`` neighbours in rank split the linear layers of
``tensor_plan`` and take the same samples, as ``tp`` does. Across these groups every weight's part
is cut once more, as ``fsdp`` does. With T the tensor size and W processes, a split weight takes 1/W
of its memory on each, another one T/W. Bytes that each rank sends in a step: those of ``tp`` for
its samples, and those of ``fsdp`` for W/T processes and a model of which the split weights are 1/T
as large. Keep T within a node.

Its options are those of ``fsdp`` and ``tensor_size``. It has the limits of both strategies.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from fabric_train.communication.parts import clip_over_ranks, find_cuts, gather_parts
from fabric_train.communication.sharding import (
    LEAST_ELEMENTS,
    Units,
    drop_gathered,
    gather_whole,
    plan_units,
    shard,
    sync_gradients,
)
from fabric_train.communication.tensor_parallel import split_linears
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import EVERY_PRECISION, Device, RankBatch, Strategy
from fabric_train.strategies.tp import check_size, find_plan, make_mesh

if TYPE_CHECKING:
    from lightning.fabric.strategies.strategy import Strategy as FabricStrategy

    from fabric_train.worker_env import World


@dataclass
class Fsdp(Strategy):
    """Fully sharded data parallel (FSDP2, ``fully_shard``), on GPUs and CPUs: each process holds
    a part of every weight, gradient and moment. A unit's weights are gathered before its
    forward and its backward pass (with ``--precision bf16-mixed`` or ``16-mixed`` in 16 bits).
    Refused: weights without a dimension, weights of several types in one unit.
    """

    name: ClassVar[str] = "fsdp"
    is_sharded: ClassVar[bool] = True
    equal_rounds: ClassVar[bool] = True
    precisions: ClassVar[frozenset[str]] = EVERY_PRECISION

    reshard: bool = True
    """Drop the other processes' weights after each unit's forward pass, and gather them anew for
    its backward pass. Without it they stay until the step's last backward pass: more memory, fewer
    bytes."""
    offload: bool = False
    """Keep weights, gradients and the optimizer's state in host memory, and update them there."""
    span: Literal["world", "node"] = "world"
    """Cut the model over all processes, or over those of each node, so that only gradients travel
    between nodes (HSDP): more memory, less traffic on a slow network."""
    units: Units = "blocks"
    """What is gathered in one piece: `blocks` are the members of the model's outermost Sequentials
    and lists, `size` any modules that are large enough, `whole` is the model at once."""
    unit_elements: int = LEAST_ELEMENTS
    """Modules with fewer weights do not become units."""

    def check(self, world: World | None, device: Device) -> None:
        if self.offload and world is None and device == "cuda":
            raise InputError(
                "--strategy fsdp: offload needs a process group, and one process was started alone",
                "torchrun --nproc-per-node=1 -m train ..., or leave --strategy_options.offload out",
            )

    def build_fabric_strategy(self, device: Device) -> FabricStrategy:
        from fabric_train.launch.fabric import build_ddp

        # The norm of offloaded gradients is summed in host memory, over gloo.
        both = device == "cuda" and self.offload
        return build_ddp(device, backend="cpu:gloo,cuda:nccl" if both else None)

    def wrap(self, model: nn.Module) -> nn.Module:
        if not dist.is_initialized():
            return model
        return shard(
            model,
            plan_units(model, self.units, least_elements=self.unit_elements),
            mesh=self.build_mesh(),
            reshard=self.reshard,
            mixed=self.plan_precision(),
            offload=self.plan_offload(),
        )

    def build_mesh(self) -> DeviceMesh:
        """All processes in one row, or with ``span`` ``node`` one row for each node."""
        world_size, row = self.place.world_size, self.place.local_world_size
        if self.span == "world" or row == world_size:
            return init_device_mesh(self.place.device.type, (world_size,))
        return init_device_mesh(
            self.place.device.type, (world_size // row, row), mesh_dim_names=("copies", "parts")
        )

    def plan_precision(self) -> MixedPrecisionPolicy | None:
        """The types to gather, compute and average in."""
        types = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
        if self.precision not in types:
            return None
        return MixedPrecisionPolicy(param_dtype=types[self.precision], reduce_dtype=torch.float32)

    def plan_offload(self) -> CPUOffloadPolicy | None:
        """Where the parts lie between uses."""
        if not self.offload:
            return None
        return CPUOffloadPolicy(pin_memory=self.place.device.type == "cuda")

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        return sync_gradients(self.model, last=last, reshard=self.reshard)

    def run_step(self, batch: RankBatch) -> Tensor:
        if self.plan_precision() and dist.is_initialized():
            # The policy chooses the types; autocast would choose others for some operations.
            batch = replace(batch, autocast=self.without_autocast)
        return super().run_step(batch)

    def without_autocast(self) -> AbstractContextManager[object]:
        """Turns autocast off, so that operations keep the types of weights and inputs."""
        return torch.autocast(self.place.device.type, enabled=False)

    def before_save(self) -> None:
        drop_gathered(self.bare)

    def predict(self, inputs: Tensor) -> Tensor:
        with self.without_autocast() if self.plan_precision() else nullcontext():
            outputs: Tensor = self.bare(inputs)
        # A backward pass would do this, but none follows.
        drop_gathered(self.bare)
        return outputs

    def gather_weights(self) -> dict[str, Tensor]:
        return gather_whole(self.bare)


@dataclass
class FsdpTp(Fsdp):
    """``tp`` and ``fsdp`` together: ``tensor_size`` neighbours split the linear layers, and across
    these groups ``fsdp`` cuts every weight once more. ``span`` ``node`` is refused.
    """

    name: ClassVar[str] = "fsdp+tp"
    can_resize: ClassVar[bool] = False

    tensor_size: int = 2
    """How many processes split the linear layers; must divide the number of processes."""

    def check(self, world: World | None, device: Device) -> None:
        super().check(world, device)
        self.require(tensor_size=1)
        check_size(self.name, "tensor_size", self.tensor_size, world.world_size if world else 1)
        if self.span != "world":
            raise InputError(
                f"--strategy {self.name}: span={self.span} would cut the model within a node, "
                "where its linear layers are split already",
                "leave --strategy_options.span out, or --strategy fsdp",
            )

    def count_replicas(self, world_size: int) -> int:
        return max(1, world_size // max(1, self.tensor_size))

    def wrap(self, model: nn.Module) -> nn.Module:
        world_size = self.place.world_size
        check_size(self.name, "tensor_size", self.tensor_size, world_size)
        self._tensor_group: dist.ProcessGroup | None = None
        plan = find_plan(self.name, model)
        if dist.is_initialized():
            self._mesh = make_mesh(self.place.device, self.replicas, world_size, "tensor")
            self._tensor_group = self._mesh.get_group("tensor")
            split_linears(model, plan, self._tensor_group)
        self._cuts = find_cuts(model)
        return super().wrap(model)

    def build_mesh(self) -> DeviceMesh:
        return self._mesh["data"]

    def clip(self, max_norm: float) -> None:
        if self._tensor_group is None:
            super().clip(max_norm)
            return
        weights = dict(self.bare.named_parameters())
        leads = dist.get_rank(self._tensor_group) == 0
        counted = [weight for name, weight in weights.items() if leads or name in self._cuts]
        clip_over_ranks(list(weights.values()), counted, dist.group.WORLD, max_norm)

    def gather_weights(self) -> dict[str, Tensor]:
        weights = super().gather_weights()
        if self._tensor_group is None:
            return weights
        return gather_parts(weights, self._cuts, self._tensor_group)
