"""How long the training goes on, and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from train.config import TrainConfig

FINAL_SHARE = 0.02
"""Of the highest learning rate, what is left at the end."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps of the whole training, counted from 0 over all restarts.

    ``stop_step`` is where this run ends; ``total_steps`` where all epochs would. An epoch that is
    no whole number of batches ends within one, which the next epoch fills.
    """

    batches_per_epoch: int | Fraction
    total_steps: int
    stop_step: int
    warmup_steps: int
    lr: float

    def epoch_of(self, step: int) -> int:
        """The 0-based epoch that the first sample of ``step`` belongs to."""
        return step // self.batches_per_epoch

    def end_of(self, epoch: int) -> int:
        """The number of steps after which ``epoch`` has been gone through."""
        return math.ceil((epoch + 1) * self.batches_per_epoch)

    def lr_at(self, step: int) -> float:
        """Linear warm-up times linear decay: no part of it is 0, so every step learns."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.lr * warmup * max(FINAL_SHARE, 1 - step / self.total_steps)


def plan_schedule(config: TrainConfig, batches_per_epoch: int | Fraction) -> Schedule:
    """The schedule that follows from the options and the length of an epoch."""
    total_steps = math.ceil(config.epochs * batches_per_epoch)
    return Schedule(
        batches_per_epoch=batches_per_epoch,
        total_steps=total_steps,
        stop_step=min(total_steps, config.max_steps or total_steps),
        warmup_steps=config.warmup_steps,
        lr=config.lr,
    )
