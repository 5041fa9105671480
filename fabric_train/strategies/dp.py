"""dp: one process, which splits each batch over the GPUs of its node.

torch's DataParallel, as old scripts use it: for each micro-batch the first GPU sends the weights to
the others, each computes a part, and the first computes the loss of the whole batch. ``ddp`` with a
process for each GPU does the same faster; ``dp`` is there for code that must stay one process.

Cost, for a model of m bytes on g GPUs: (g - 1) m bytes out to the replicas for each forward pass
and as many back as gradients, all through the first GPU, which alone holds the optimizer's state
and all outputs; the others hold m bytes while they compute. One interpreter drives all GPUs, so
Python's lock limits small models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.strategies.strategy import Device, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Dp(Strategy):
    """torch's DataParallel: one process splits each batch over the GPUs of its node. ``ddp`` does
    the same faster. Several processes, and CPUs, are refused. No test has run it on several
    GPUs.
    """

    name: ClassVar[str] = "dp"

    def check(self, world: World | None, device: Device) -> None:
        if world is not None and world.world_size > 1:
            raise InputError(
                f"--strategy dp is one process on one node, and there are {world.world_size}"
                + (f" on {world.num_nodes} nodes" if world.num_nodes > 1 else ""),
                "--strategy ddp, or --strategy ddp2 if the loss compares the samples of a batch",
            )
        if device == "cpu":
            raise InputError(
                "--strategy dp splits a batch over GPUs, and there is none",
                "--strategy ddp with several processes: "
                "torchrun --nproc-per-node 2 -m train --strategy ddp",
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        first = self.place.device.index or 0
        others = [index for index in range(torch.cuda.device_count()) if index != first]
        return nn.DataParallel(model, device_ids=[first, *others])
