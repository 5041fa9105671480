"""Tensor parallelism: the processes of a group share the layers' weights and compute together.

``tensor_size`` neighbours in rank (by default all processes) hold one copy of the model and take
the same samples; several copies are data parallel. A model says in its attribute ``tensor_plan``
which layers are split (``fabric_train.communication.tensor_parallel``). ``charlm`` has a plan;
other models need a line such as:

    model.tensor_plan = {"*.query": "column", "*.up": "column", "*.down": "row"}

Each split weight, its gradient and its optimizer state take 1/T of the memory, with T the tensor
size; other weights (norms, embeddings) and activations outside of the split layers are whole on
every rank. Bytes that each rank sends in a step: 4 * L * (T - 1) / T * A, with L the pairs of a
column and a row layer (two in a transformer's block) and A the bytes of one activation ``[batch,
seq, width]`` in float32, for 2 all-reduces of 2 * (T - 1) / T * A each; and with R copies
2 * (R - 1) / R of the rank's gradients. A step waits for all these bytes, so keep T within a node.

Not supported: unequal parts of a layer (heads and widths must be multiples of T), exact sums, and
the dropout of one process inside a split part, where the ranks draw the same numbers, each for its
own heads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.parts import clip_over_ranks, find_cuts, gather_parts
from fabric_train.communication.tensor_parallel import Plan, split_linears
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import EVERY_PRECISION, Device, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Tp(Strategy):
    """Tensor parallel: ``tensor_size`` neighbours split the linear layers and take the same
    samples. Keep these within a node. A model says which layers are split:

    ```python
    model.tensor_plan = {"*.query": "column", "*.up": "column", "*.down": "row"}
    ```

    A model without a plan is refused, and so are widths that ``tensor_size`` does not divide.
    With dropout inside a split layer the result is not that of one process.
    """

    name: ClassVar[str] = "tp"
    can_resize: ClassVar[bool] = False
    is_sharded: ClassVar[bool] = True
    precisions: ClassVar[frozenset[str]] = EVERY_PRECISION

    tensor_size: int = 0
    """How many processes share one copy of the model; 0 for all of them."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(tensor_size=0)
        check_size(self.name, "tensor_size", self.tensor_size, world.world_size if world else 1)

    def count_replicas(self, world_size: int) -> int:
        return max(1, world_size // (self.tensor_size or world_size))

    def wrap(self, model: nn.Module) -> nn.Module:
        check_size(self.name, "tensor_size", self.tensor_size, self.place.world_size)
        plan = find_plan(self.name, model)
        self.tensor_group: dist.ProcessGroup | None = None
        wrapped = model
        if self.place.world_size > 1:
            mesh = make_mesh(self.place.device, self.replicas, self.place.world_size, "tensor")
            self.tensor_group = mesh.get_group("tensor")
            split_linears(model, plan, self.tensor_group)
            wrapped = self.wrap_copies(model, mesh)
        self._cuts = find_cuts(model)
        return wrapped

    def wrap_copies(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Wraps the model so that the gradients of its copies are averaged."""
        if self.replicas == 1:
            return model
        device = self.place.device
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=mesh.get_group("data"),
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )

    def describe(self) -> str:
        return f"copies of the model: {self.replicas}, each on {self.tensor_ranks} processes"

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def clip(self, max_norm: float) -> None:
        weights = list(self.bare.parameters())
        counted = [
            weight
            for name, weight in self.bare.named_parameters()
            if name in self._cuts or self.place.rank % self.tensor_ranks == 0
        ]
        clip_over_ranks(weights, counted, self.tensor_group, max_norm)

    @property
    def tensor_ranks(self) -> int:
        """How many ranks share a copy of the model."""
        return self.place.world_size // self.replicas

    def gather_weights(self) -> dict[str, Tensor]:
        weights = self.bare.state_dict()
        if self.tensor_group is None:
            return dict(weights)
        return gather_parts(weights, self._cuts, self.tensor_group)


def check_size(strategy: str, option: str, size: int, world_size: int) -> None:
    """Raises InputError if ``size`` is not 0 and does not divide ``world_size``."""
    if size and world_size % size:
        fits = [str(each) for each in range(1, world_size + 1) if world_size % each == 0]
        raise InputError(
            f"--strategy {strategy}: {world_size} processes cannot be divided into groups of "
            f"{option}={size}",
            f"--strategy_options.{option} {' or '.join(fits)}, or a multiple of {size} processes",
        )


def find_plan(strategy: str, model: nn.Module) -> Plan:
    """The model's ``tensor_plan``; raises InputError if it has none."""
    plan: Plan | None = getattr(model, "tensor_plan", None)
    if not plan:
        linears = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        example = {linears[0]: "column", linears[-1]: "row"} if len(linears) > 1 else {}
        raise InputError(
            f"--strategy {strategy}: the model {type(model).__name__} has no tensor_plan that says "
            "which layers to split",
            f"set model.tensor_plan = {example}, or --strategy fsdp"
            if example
            else "--strategy fsdp, which takes any model",
        )
    return plan


def make_mesh(device: torch.device, replicas: int, world_size: int, inner: str) -> DeviceMesh:
    """The mesh ``[data, inner]`` over all ranks; all of them must call it."""
    return init_device_mesh(
        device.type, (replicas, world_size // replicas), mesh_dim_names=("data", inner)
    )
