"""DDP whose gradient matrices are sent as the product of two thin ones (PowerSGD).

``fabric_train.communication.powersgd`` has the mathematics and its source. Memory: the gradients
once more, for what a rank's last product left out. Bytes of a step: for each weight of n rows and m
columns that is compressed, 4 * r (n + m) * 2 (W - 1) / W instead of 4 * n m * 2 (W - 1) / W, r the
``matrix_approximation_rank``; biases, small weights, and the first ``start_powerSGD_iter`` steps
are sent whole.

Checkpoints hold the errors, the matrices and the count of steps. All ranks write them, so all nodes
must share the folder. In a world of another size every rank begins with the mean of the errors,
which is what would have reached the weights. If one process alone resumes, the errors are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train.checkpointing.memory import share_row, take_row
from fabric_train.communication.powersgd import PowerSgdHook
from fabric_train.strategies.hooked import HookedDdp
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class PowerSgd(HookedDdp):
    """DDP whose gradient matrices are sent as the product of two thin ones, with what they left
    out added to the next step's (Vogels et al. 2019). The errors are in checkpoints.
    """

    name: ClassVar[str] = "powersgd"
    heals: ClassVar[bool] = False  # each rank's error is its own
    has_rows: ClassVar[bool] = True

    matrix_approximation_rank: int = 1
    """Columns of the thin matrices: more of them cost more bytes and lose less."""
    start_powerSGD_iter: int = 100  # noqa: N815 (torch's spelling)
    """Steps at the start of a training whose gradients are sent whole; about a tenth of all."""
    min_compression_rate: float = 2.0
    """A weight is compressed if that divides its bytes by at least this."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(matrix_approximation_rank=1, start_powerSGD_iter=0, min_compression_rate=0)

    def wrap(self, model: nn.Module) -> nn.Module:
        self.hook = PowerSgdHook(
            model,
            matrix_approximation_rank=self.matrix_approximation_rank,
            start_powerSGD_iter=self.start_powerSGD_iter,
            min_compression_rate=self.min_compression_rate,
        )
        return super().wrap(model)

    def attach(self, ddp: DistributedDataParallel) -> None:
        self.hook.attach(ddp)

    def step(self, number: int) -> None:
        super().step(number)
        self.hook.iteration = number + 1

    def memory(self) -> dict[str, Tensor]:
        memory = {"iteration": torch.tensor(self.hook.iteration)}
        memory |= {f"q.{name}": q for name, q in self.hook.qs.items()}
        return memory | {
            f"error.{name}": share_row(each) for name, each in self.hook.errors.items()
        }

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.hook.iteration = int(saved.get("iteration", 0))
        for name, tensor in saved.items():
            kind, _, of = name.partition(".")
            if kind == "q":
                self.hook.qs[of] = tensor.to(self.place.device, copy=True)
            elif kind == "error" and self.place.world_size > 1:
                row = take_row(tensor)
                error = tensor.mean(0) if row is None else row
                self.hook.errors[of] = error.to(self.place.device, copy=True)
