"""DistributedDataParallel: every process holds the model, and gradients are averaged.

S. Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.reduction import ExactReduction, FastReduction
from fabric_train.environment import make_deterministic
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import EVERY_PRECISION, Place, Strategy


@dataclass
class Ddp(Strategy):
    """DistributedDataParallel: every process holds the model and takes its share of the batch.
    The default.
    """

    name: ClassVar[str] = "ddp"
    is_exact: ClassVar[bool] = True
    heals: ClassVar[bool] = True
    precisions: ClassVar[frozenset[str]] = EVERY_PRECISION

    exact: bool = False
    """Add the virtual shards in a fixed order: the same bits with any number of processes."""

    def wrap(self, model: nn.Module) -> nn.Module:
        self._reduction: FastReduction | ExactReduction
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
        wrapped = self.wrap_ddp(model) if self.place.world_size > 1 else model
        self._reduction = FastReduction(
            wrapped, virtual_shards=self.virtual_shards, world_size=self.place.world_size
        )
        return wrapped

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """DDP for a model that uses all its weights in every step."""
        return wrap_ddp(model, self.place)

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        return self._reduction.sync(last=last)

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        return self._reduction.forward(inputs, last=last)

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        self._reduction.backward(loss * weight if weight != 1.0 else loss, shard)

    def finish(self) -> None:
        self._reduction.finish()


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
