"""Strategies whose ranks hold different weights, and mix these instead of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fabric_train.communication.mean import bring_together
from fabric_train.strategies.strategy import Strategy


@dataclass
class Replicas(Strategy):
    """Before a checkpoint all ranks' weights, moments and buffers become their mean, for good.

    So a checkpoint is as large as ``ddp``'s, loads at any world size and under any strategy, and a
    resumed training goes on like one that was not disturbed. The tests at the end see the mean too,
    which is what the papers prove to converge. A checkpoint costs three all-reduces of the weights
    with Adam, and changes the weights: if two trainings must give equal weights, fix the steps of
    their checkpoints by ``--checkpoint_every_steps``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drifted = False

    @property
    def weights(self) -> list[nn.Parameter]:
        """What the ranks mix."""
        return [each for each in self.bare.parameters() if each.requires_grad]

    def step(self, number: int) -> None:
        super().step(number)
        self._drifted = True

    def before_save(self) -> None:
        # Averaging equal weights again would round them.
        if self._drifted and self.place.world_size > 1:
            self.settle()
            bring_together(self.bare, self.optimizer)
            self.on_together()
        self._drifted = False

    def memory(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps)}

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.steps = int(saved.get("steps", 0))
        self._drifted = False
        self.on_together()

    def settle(self) -> None:
        """Completes what is under way between the ranks."""

    def on_together(self) -> None:
        """Called when saving or loading a checkpoint has made all ranks' weights equal."""
