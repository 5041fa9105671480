"""DiLoCo: local SGD whose mean change of the weights is the gradient of an outer optimizer.

## diloco

Every process makes ``every`` steps with the optimizer as given. Then the mean of (weights at the
last meeting - weights now) is taken as a gradient by SGD with Nesterov's momentum, and all go on
from its result (A. Douillard et al. 2023, algorithm 1). The inner moments stay each process' own.
``warmup_steps`` average gradients first, as under ``ddp``; the paper starts from a model that was
trained so.

Options: ``every`` (100; the paper takes 500), ``outer_lr`` (0.7), ``outer_momentum`` (0.9),
``warmup_steps`` (0). With ``outer_lr`` 1 and ``outer_momentum`` 0 it is ``local_sgd``.

Sent by each process for each step: as ``local_sgd``, 2 (W - 1) / W x P / every bytes. Memory: the
weights twice more than one process alone, for the weights at the last meeting and the momentum.

A checkpoint is as ``local_sgd``'s, with the outer state once for all processes. In a world of
another size all begin with the mean of the weights, and the outer state goes on. A checkpoint
between two meetings therefore loses nothing, at any size. Tests see the mean of the weights.

It cannot be ``exact``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from fabric_train.communication.diloco import OuterSteps
from fabric_train.strategies.local_sgd import LocalSgd
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World

ANCHOR, VELOCITY = "anchor.", "velocity."
"""Prefixes of the names of the outer state, which is equal on all ranks."""


@dataclass
class Diloco(LocalSgd):
    """``local_sgd`` with an outer optimizer, SGD with Nesterov's momentum, whose gradient is the
    mean change of the processes' weights (Douillard et al. 2023).
    """

    name: ClassVar[str] = "diloco"

    every: int = 100
    """Optimizer steps that each process makes alone before all meet."""
    warmup_steps: int = 0
    """Steps at the start of the training that average gradients, as ``ddp`` does."""
    outer_lr: float = 0.7
    """Learning rate of the outer optimizer."""
    outer_momentum: float = 0.9
    """Nesterov momentum of the outer optimizer; 0 with ``outer_lr`` 1 is ``local_sgd``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meeting: OuterSteps

    def check(self, world: World | None, device: Device) -> None:
        super().check(world, device)
        self.require(outer_lr=0.0, outer_momentum=0.0)

    def build_meeting(self, model: nn.Module, share: float) -> OuterSteps:
        return OuterSteps(
            model,
            every=self.every,
            after=self.warmup_steps,
            share=share,
            lr=self.outer_lr,
            momentum=self.outer_momentum,
        )

    def memory(self) -> dict[str, Tensor]:
        anchor = {ANCHOR + name: tensor for name, tensor in self.meeting.anchor.items()}
        velocity = {VELOCITY + name: tensor for name, tensor in self.meeting.velocity.items()}
        return super().memory() | anchor | velocity

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        super().load_memory(saved)
        for begin, tensors in (
            (ANCHOR, self.meeting.anchor),
            (VELOCITY, self.meeting.velocity),
        ):
            for name, tensor in tensors.items():
                if begin + name in saved:
                    tensor.copy_(saved[begin + name])
