"""FSDP2 over copies of a model that tensor parallelism splits: a mesh of two dimensions.

``tensor_size`` neighbours in rank split the linear layers of ``tensor_plan`` and take the same
samples, as ``tp`` does. Across these groups every weight's part is cut once more, as ``fsdp`` does.
With T the tensor size and W processes, a split weight takes 1/W of its memory on each, another one
T/W. Bytes that each rank sends in a step: those of ``tp`` for its samples, and those of ``fsdp``
for W/T processes and a model of which the split weights are 1/T as large. Keep T within a node.

Its options are those of ``fsdp`` and ``tensor_size``. It has the limits of both strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fabric_train.communication.parts import clip_over_ranks, find_cuts, gather_parts
from fabric_train.communication.tensor_parallel import split_linears
from fabric_train.errors import InputError
from fabric_train.strategies.fsdp import Fsdp
from fabric_train.strategies.strategy import Device
from fabric_train.strategies.tp import check_size, find_plan, make_mesh

if TYPE_CHECKING:
    from fabric_train.worker_env import World


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
