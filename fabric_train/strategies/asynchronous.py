"""Every rank trains its own weights; they are averaged in the background (Bagua's async).

``fabric_train.communication.asynchronous`` has the mathematics and its source. Memory: the weights
twice more, on the host. Bytes of an average: 4 * 2 (W - 1) / W * n for n weights. An average begins
every ``sync_interval_ms``, or when the previous one has arrived, whichever is later.

When an average arrives depends on the machine, so two runs give different weights. In every run the
ranks' mean weights move by the mean of their steps, checkpoints and tests see the mean of all
ranks, and a resumed training goes on from that mean. If a rank dies or hangs, the others' averages
fail, at the latest after ``timeout_s``. Under ``python -m train`` no rank gets more than about nine
steps ahead, because the ranks agree on checkpoints that often; in a loop of your own one may.
Each rank clips its own gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from fabric_train.communication.asynchronous import AsyncAverage
from fabric_train.communication.mean import average_gradients
from fabric_train.strategies.replicas import Replicas
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Asynchronous(Replicas):
    """Each process trains weights of its own; an average runs in the background and is added when
    it has arrived. Two runs never give the same weights.
    """

    name: ClassVar[str] = "bagua:async"

    sync_interval_ms: int = 500
    """Milliseconds from the beginning of one average to that of the next."""
    warmup_steps: int = 0
    """Steps at the start of a training that average gradients, as ``ddp`` does."""
    timeout_s: float = 300.0
    """How long an average may take before the training ends with an error."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(sync_interval_ms=0, warmup_steps=0, timeout_s=1)

    def wrap(self, model: nn.Module) -> nn.Module:
        self._average: AsyncAverage | None = None
        if self.place.world_size > 1:
            self._average = AsyncAverage(
                self.weights,
                interval_s=self.sync_interval_ms / 1000,
                timeout_s=self.timeout_s,
            )
        return model

    def finish(self) -> None:
        if self._average is not None and self.steps < self.warmup_steps:
            average_gradients(self.weights)

    def step(self, number: int) -> None:
        super().step(number)
        if self._average is not None and self.steps > self.warmup_steps:
            self._average.after_step()

    def settle(self) -> None:
        if self._average is not None:
            self._average.settle()
