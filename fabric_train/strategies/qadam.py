"""Adam whose momentum is sent in 8 bits or 1 (Bagua's QAdam, 1-bit Adam).

``fabric_train.communication.qadam`` has the mathematics and its sources. In the first
``warmup_steps`` Adam runs on the mean gradient, sent whole after the backward pass; after them the
variance is frozen.

Memory: with ``error_feedback`` the weights 1 + 1 / W times more. Bytes of a step after the warm-up:
2 (W - 1) / W * n * (1 + 8 / 512) for n weights with 8 bits, 2 (W - 1) / W * n * (1 / 8 + 4 / 512)
with 1. No gradients are sent then, so each rank clips its own.

Checkpoints hold the codes' errors and the step at which the variance was frozen. All ranks write
them, so all nodes must share the folder. In a world of another size all begin with the mean error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fabric_train.checkpointing.memory import share_row, take_row
from fabric_train.communication.qadam import QAdamSteps
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import BuildOptimizer, Device, Place, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class QAdam(Strategy):
    """Adam or AdamW whose momentum is sent in 8 bits or 1 instead of the gradients; the variance
    is frozen after a warm-up. Another optimizer is refused. With ``bits 1`` it is 1-bit Adam.
    """

    name: ClassVar[str] = "bagua:qadam"
    has_rows: ClassVar[bool] = True

    warmup_steps: int = 100
    """Steps of plain Adam before its variance is frozen; a fifth of the training is usual."""
    bits: Literal[8, 1] = 8
    """Bits of each number that is sent; 1 makes it 1-bit Adam."""
    error_feedback: bool = True
    """Add each code's error to the next one; Bagua does not, but 1 bit needs it."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(warmup_steps=1)
        if self.bits == 1 and not self.error_feedback:
            raise InputError(
                f"--strategy {self.name}: 1 bit without error_feedback does not converge",
                "leave --strategy_options.error_feedback out, or --strategy_options.bits 8",
            )

    def setup(
        self,
        model: nn.Module,
        build_optimizer: BuildOptimizer,
        place: Place,
        *,
        virtual_shards: int | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        wrapped, optimizer = super().setup(
            model, build_optimizer, place, virtual_shards=virtual_shards
        )
        try:
            self.adam = QAdamSteps(
                optimizer,
                warmup_steps=self.warmup_steps,
                bits=self.bits,
                error_feedback=self.error_feedback,
            )
        except ValueError as error:
            raise InputError(
                f"--strategy {self.name}: {error}",
                "build torch.optim.AdamW, or --strategy bagua:bytegrad for any optimizer",
            ) from error
        return wrapped, optimizer

    def finish(self) -> None:
        self.adam.average_gradients()

    def step(self, number: int) -> None:
        self.adam.step()
        self.optimizer.zero_grad(set_to_none=True)

    def memory(self) -> dict[str, Tensor]:
        adam, mean = self.adam, self.adam.mean
        memory: dict[str, Tensor] = {}
        if adam.frozen_at is not None:
            memory["frozen_at"] = torch.tensor(adam.frozen_at)
        if mean is not None and mean.error is not None and mean.mean_error is not None:
            memory["error"] = share_row(mean.error)
            memory["mean_error"] = share_row(mean.mean_error)
        return memory

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.adam.forget()
        if "frozen_at" in saved:
            self.adam.frozen_at = int(saved["frozen_at"])
        if "error" not in saved or self.place.world_size == 1:
            return
        mean = self.adam.make_mean()
        error, mean_error = take_row(saved["error"]), take_row(saved["mean_error"])
        if error is None or mean_error is None:
            mean.spread_errors(saved["error"].mean(0), saved["mean_error"].flatten(0, 1))
        else:
            mean.load_errors(error, mean_error)
