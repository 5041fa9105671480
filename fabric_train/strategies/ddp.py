"""DistributedDataParallel: every process holds the model, and gradients are averaged; also under
Bagua's name, and in processes that the program itself starts.

S. Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training". Bytes
of a step: 4 * 2 (W - 1) / W * n for n weights and W processes.

``ddp_spawn``, ``ddp_fork`` and ``ddp_notebook`` are for interactive use, on one node: ``python -m
train --strategy ddp_spawn --strategy_options.processes 2``, or ``fabric_train.launch_processes`` in
a script or a notebook. The processes are started by Fabric. A lost process ends the training,
nothing starts it again, and one node is the limit: for everything else start ``ddp`` by the
launcher or torchrun. ``ddp_spawn`` starts new interpreters, which import the script again: about 3
s each, and the function must be importable. ``ddp_fork`` and ``ddp_notebook`` copy the process,
which takes 0.1 s, and works in notebooks; CUDA must not be in use in that process yet. Cost: that
of ``ddp``, and one more process, which waits.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.reduction import ExactReduction, FastReduction
from fabric_train.determinism import make_deterministic
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import EVERY_PRECISION, Device, Place, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Replicated(Strategy):
    """Every process holds the model; ``wrap`` sets the reduction that makes one gradient of all."""

    heals: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reduction: FastReduction | ExactReduction

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        return self._reduction.sync(last=last)

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        return self._reduction.forward(inputs, last=last)

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        self._reduction.backward(loss * weight if weight != 1.0 else loss, shard)

    def finish(self) -> None:
        self._reduction.finish()


@dataclass
class Ddp(Replicated):
    """DistributedDataParallel: every process holds the model and takes its share of the batch.
    The default.
    """

    name: ClassVar[str] = "ddp"
    is_exact: ClassVar[bool] = True
    precisions: ClassVar[frozenset[str]] = EVERY_PRECISION

    exact: bool = False
    """Add the virtual shards in a fixed order: the same bits with any number of processes."""

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.exact:
            make_deterministic()
            self._reduction = ExactReduction(
                model,
                virtual_shards=self.virtual_shards,
                rank=self.place.rank,
                world_size=self.place.world_size,
            )
            return model
        check_sync_batchnorm(model, self.virtual_shards, self.place.world_size)
        wrapped = wrap_ddp(model, self.place) if self.place.world_size > 1 else model
        self._reduction = FastReduction(
            wrapped, virtual_shards=self.virtual_shards, world_size=self.place.world_size
        )
        return wrapped


def sync_batch_norm(model: nn.Module, device: torch.device, world_size: int) -> nn.Module:
    """Replaces each BatchNorm by a SyncBatchNorm; raises InputError if that is not possible."""
    if not any(isinstance(part, _BatchNorm) for part in model.modules()):
        raise InputError("--sync_batchnorm: the model has no BatchNorm", "leave it out")
    if device.type == "cpu" and world_size > 1:
        raise InputError(
            f"--sync_batchnorm: torch has SyncBatchNorm for GPUs only, and {world_size} processes "
            "train on CPUs",
            "leave it out, so that each process normalises by its own samples, or use GroupNorm, "
            "which needs no other process",
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def check_sync_batchnorm(model: nn.Module, virtual_shards: int, world_size: int) -> None:
    """Raises InputError if unequal numbers of SyncBatchNorm passes would make the ranks hang."""
    names = (name for name, part in model.named_modules() if isinstance(part, nn.SyncBatchNorm))
    if virtual_shards % world_size and (name := next(names, None)):
        raise InputError(
            f"{name} is a SyncBatchNorm, which all processes must call equally often: "
            f"{world_size} processes do not share {virtual_shards} virtual shards equally",
            "virtual_shards: a multiple of each number of processes, or no SyncBatchNorm",
        )


def wrap_ddp(model: nn.Module, place: Place) -> DistributedDataParallel:
    """DDP for a model that uses all its weights in every step."""
    device = place.device
    # https://pytorch.org/docs/stable/notes/cuda.html#id5
    with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else nullcontext():
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            init_sync=not place.has_equal_weights,
            # No static_graph: with it a first step under no_sync fails an assertion of torch.
            # No broadcast of buffers: it hangs if the ranks' test shares differ by a batch.
            forward_sync_buffers=False,
        )


@dataclass
class GradientAllreduce(Ddp):
    """The same as ``ddp``, under Bagua's name."""

    name: ClassVar[str] = "bagua:gradient_allreduce"


@dataclass
class DdpSpawn(Ddp):
    """``ddp`` on one node in new interpreters (3 s each), which ``python -m train`` starts, or
    ``fabric_train.launch_processes`` in a script. A lost process ends the training. Refused
    under the launcher and torchrun.
    """

    name: ClassVar[str] = "ddp_spawn"
    heals: ClassVar[bool] = False
    start_method: ClassVar[Literal["spawn", "fork"]] = "spawn"

    processes: int = 0
    """How many processes; 0 for one on each GPU, or two on CPUs."""

    def check(self, world: World | None, device: Device) -> None:
        self.check_start(world)
        raise InputError(
            f"strategy {self.name} starts processes of its own, and launch_fabric is for one that "
            "is already started",
            "fabric_train.launch_processes(function, env, strategy=strategy)",
        )

    def check_start(self, world: World | None) -> None:
        """Raises InputError if this process cannot start the others."""
        if world is not None:
            raise InputError(
                f"--strategy {self.name}: the launcher or torchrun has started "
                f"{world.world_size} processes, and each of them would start its own again",
                "--strategy ddp, which uses the processes that are there",
            )
        if self.processes < 0:
            raise InputError(
                f"--strategy_options.processes {self.processes} is below 0",
                "leave it out for one on each GPU",
            )
        if self.start_method == "spawn" and hasattr(sys, "ps1"):
            raise InputError(
                f"strategy {self.name}: new interpreters cannot import the functions of a notebook "
                "or an interactive session",
                "strategy ddp_notebook, which copies this process",
            )
        if self.start_method == "fork" and torch.cuda.is_initialized():
            raise InputError(
                f"strategy {self.name}: CUDA is already in use in this process, and a copy of it "
                "cannot use it",
                "restart the kernel and start the training before anything touches the GPU, or "
                "strategy ddp_spawn in a script",
            )


@dataclass
class DdpFork(DdpSpawn):
    """As ``ddp_spawn``, in copies of this process (0.1 s), as long as CUDA is not in use there."""

    name: ClassVar[str] = "ddp_fork"
    start_method: ClassVar[Literal["spawn", "fork"]] = "fork"


@dataclass
class DdpNotebook(DdpFork):
    """As ``ddp_fork``, in a notebook."""

    name: ClassVar[str] = "ddp_notebook"
