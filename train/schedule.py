"""The length of the training, the learning rate of each step (warm-up, decay, scaling), and the
batch size.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from train.config import TrainConfig

FINAL_SHARE = 0.02
"""Share of the highest learning rate that is left at the end."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps of the whole training, counted from 0 over all restarts.

    Everything is a function of the samples seen before a step, so that it does not depend on how
    they were cut into batches. ``first_step`` began at ``first_sample``; from there on every step
    takes ``batch_size`` samples. The learning rate is multiplied by a factor that reaches
    ``lr_factor`` after ``scale_warmup_samples``.
    """

    epoch_samples: int
    epochs: int
    batch_size: int
    max_steps: int | None
    warmup_samples: int
    lr: float
    lr_factor: float = 1.0
    scale_warmup_samples: int = 0
    first_step: int = 0
    first_sample: int = 0

    def anchored(self, step: int, sample: int) -> Schedule:
        """The same schedule, continued after ``step`` steps that took ``sample`` samples."""
        return dataclasses.replace(self, first_step=step, first_sample=sample)

    def cut(self, stop_step: int | None) -> Schedule:
        """The same schedule, trained up to ``stop_step`` at most; None for no limit."""
        stops = [stop for stop in (self.max_steps, stop_step) if stop is not None]
        return dataclasses.replace(self, max_steps=min(stops, default=None))

    @property
    def total_steps(self) -> int:
        """The step at which all epochs end; the last step may reach beyond them."""
        return self.end_of(self.epochs - 1)

    @property
    def stop_step(self) -> int:
        """The step at which this run ends."""
        return min(self.total_steps, self.max_steps or self.total_steps)

    def sample_at(self, step: int) -> int:
        """Samples that were seen before ``step``, counted over all epochs."""
        return self.first_sample + (step - self.first_step) * self.batch_size

    def epoch_of(self, step: int) -> int:
        """The 0-based epoch that the first sample of ``step`` belongs to."""
        return self.sample_at(step) // self.epoch_samples

    def end_of(self, epoch: int) -> int:
        """The number of steps after which ``epoch`` is complete."""
        missing = (epoch + 1) * self.epoch_samples - self.first_sample
        return self.first_step + math.ceil(missing / self.batch_size)

    def lr_at(self, step: int) -> float:
        """Linear warm-up times linear decay; never 0, so that every step learns.

        It is multiplied by the growth to ``lr_factor`` for a larger batch (Goyal et al. 2017,
        "Accurate, Large Minibatch SGD", section 2.2).
        """
        sample = self.sample_at(step)
        warmup = min(1.0, (sample + self.batch_size) / (self.warmup_samples + self.batch_size))
        decay = max(FINAL_SHARE, 1 - sample / (self.epochs * self.epoch_samples))
        grown = min(1.0, sample / self.scale_warmup_samples) if self.scale_warmup_samples else 1.0
        return self.lr * warmup * decay * (1 + (self.lr_factor - 1) * grown)


def plan_schedule(config: TrainConfig, *, epoch_samples: int, world_size: int) -> Schedule:
    """The schedule for these options, this training set and, if scaled, this world."""
    scale = plan_batch_size(config, world_size) / config.global_batch_size
    epochs_to_scale = min(config.scale_warmup_epochs, config.epochs)
    return Schedule(
        epoch_samples=epoch_samples,
        epochs=config.epochs,
        batch_size=plan_batch_size(config, world_size),
        max_steps=config.max_steps,
        warmup_samples=config.warmup_steps * config.global_batch_size,
        lr=config.lr,
        lr_factor=scale if config.lr_scaling == "linear" else math.sqrt(scale),
        scale_warmup_samples=0 if scale == 1 else epochs_to_scale * epoch_samples,
    )


def plan_batch_size(config: TrainConfig, world_size: int) -> int:
    """Samples of one step: the option, times the world size for ``scaled``."""
    samples: int = config.global_batch_size
    return samples * world_size if config.reduction == "scaled" else samples
