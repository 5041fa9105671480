"""DDP with a communication hook: what is sent for a bucket of gradients, and what comes back."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.reduction import FastReduction
from fabric_train.strategies.ddp import check_sync_batchnorm, wrap_ddp
from fabric_train.strategies.strategy import Strategy


@dataclass
class HookedDdp(Strategy):
    """Sends gradients while the backward pass of a rank's last micro-batch runs.

    A process alone trains without the hook.
    """

    heals: ClassVar[bool] = True

    def wrap(self, model: nn.Module) -> nn.Module:
        place = self.place
        check_sync_batchnorm(model, self.virtual_shards, place.world_size)
        wrapped: nn.Module = model
        if place.world_size > 1:
            wrapped = ddp = wrap_ddp(model, place)
            self.attach(ddp)
        self._reduction = FastReduction(
            wrapped, virtual_shards=self.virtual_shards, world_size=place.world_size
        )
        return wrapped

    @abstractmethod
    def attach(self, ddp: DistributedDataParallel) -> None:
        """Registers the hook."""

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        return self._reduction.sync(last=last)

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        return self._reduction.forward(inputs, last=last)

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        self._reduction.backward(loss * weight if weight != 1.0 else loss, shard)
