"""Strategies whose ranks hold weights that differ, and mix them instead of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fabric_train.communication.flat import bring_together
from fabric_train.strategies.strategy import Strategy


@dataclass
class Replicas(Strategy):
    """Before a checkpoint all ranks' weights, moments and buffers become their mean, for good.

    So a checkpoint is as large as ``ddp``'s, loads at any world size and under any strategy, and a
    resumed training goes on like one that was not disturbed. The tests at the end see the mean too,
    which is what the papers prove to converge. A checkpoint costs three all-reduces of the weights
    with Adam, and at which steps checkpoints are written has an effect on the weights: ask for them
    by ``--checkpoint_every_steps`` where two trainings have to give the same.
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
        """Ends what is under way between the ranks."""

    def on_together(self) -> None:
        """After all ranks' weights have become equal, by a checkpoint that was saved or loaded."""
