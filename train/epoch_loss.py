"""The loss of the epoch that is being trained, over all ranks."""

from __future__ import annotations

from typing import cast

import torch
from lightning.fabric import Fabric

from train.build import Run


class EpochLoss:
    """The current epoch's loss over all ranks, and over all starts that made its steps."""

    def __init__(self, run: Run) -> None:
        self._fabric, self._state = run.fabric, run.state
        self._loss_before, self._steps = run.state.epoch_loss, run.state.epoch_steps
        # Ranks may hold different numbers of shards.
        here = len(run.sampler.shards) * run.strategy.replicas
        self._share = here / run.sampler.virtual_shards
        self._sum = torch.zeros((), device=run.fabric.device)

    def add(self, loss: torch.Tensor) -> None:
        """Adds a step's loss on the device, because reading it would wait for the device."""
        self._sum += loss
        self._steps += 1

    def average(self, loss: torch.Tensor) -> float:
        """The weighted mean of all ranks' losses; blocks, and all ranks must call it."""
        return average(self._fabric, loss * self._share)

    def pending(self) -> float:
        """This rank's part of what ``refresh`` would add; waits for the device."""
        return float(self._sum * self._share)

    def settle(self, rest: float) -> None:
        """Writes the sums into the state, with the mean of what the ranks had pending."""
        self._state.epoch_loss = self._loss_before + rest
        self._state.epoch_steps = self._steps

    def refresh(self) -> None:
        """Writes the sums into the state; blocks, and all ranks must call it."""
        self._state.epoch_loss = self._loss_before + self.average(self._sum)
        self._state.epoch_steps = self._steps


def average(fabric: Fabric, value: torch.Tensor) -> float:
    """The mean of all ranks' values; blocks on the device."""
    return cast("torch.Tensor", fabric.all_reduce(value, reduce_op="mean")).item()
