"""Local SGD: processes train alone for some steps, then average their weights; DiLoCo, in which the
mean change of the weights is the gradient of an outer optimizer.

Neither can be ``exact``: what a process computes alone depends on how many there are.

## local_sgd

Every process makes ``every`` optimizer steps on its own samples; then all weights become their mean
(S. U. Stich 2019). With ``warmup_steps`` the training begins with averaged gradients, as under
``ddp``, and makes local steps afterwards (post-local SGD, T. Lin et al. 2018). With ``every`` 1 and
SGD without momentum it computes what ``ddp`` does. The optimizer's moments stay each process' own.
Gradients are clipped in each process.

Options: ``every`` (8), ``warmup_steps`` (0).

Sent by each process, for P bytes of weights and W processes, with a ring: 2 (W - 1) / W x P / every
bytes for each step, an ``every``-th of ``ddp``'s; ``ddp``'s in the warm-up. Nothing is sent during
a backward pass, so the average is waited for. Memory: that of one process alone, and a message of
32 MiB or of the largest tensor. While a checkpoint is copied, a second copy of weights and moments.

A checkpoint's model and optimizer are the mean of all processes', so any strategy loads it. Beside
them lie each process' own moments and, between two meetings, its own weights: a world of the same
size resumes bit for bit. In a world of another size all processes begin with the mean. So a
checkpoint takes 1 + W times the space, all nodes must share its folder, and saving one sends what
it averages. When checkpoints are written does not change the training. Tests use the mean.

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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from fabric_train.checkpointing.memory import ready_to_save, share_row, take_row
from fabric_train.communication.local_sgd import Averaging, OuterSteps
from fabric_train.communication.mean import (
    average,
    average_gradients,
    fill_gradients,
    find_statistics,
    find_weights,
)
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies.strategy import Device, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


WEIGHT, STATISTIC, MOMENT = "weight.", "statistic.", "moment."
"""Prefixes of the names of each rank's own weights, buffers and optimizer moments."""


@dataclass
class LocalSgd(Strategy):
    """Each process makes ``every`` steps alone, then all weights become their mean (Stich 2019;
    with a warm-up Lin et al. 2018). Moments stay each process' own.
    """

    name: ClassVar[str] = "local_sgd"
    has_rows: ClassVar[bool] = True

    every: int = 8
    """Optimizer steps that each process makes alone before all meet."""
    warmup_steps: int = 0
    """Steps at the start of the training that average gradients, as ``ddp`` does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meeting: Averaging
        self._drifted: set[str] = set()
        """Which of WEIGHT, STATISTIC and MOMENT differ between the ranks."""
        self._own_weights: dict[str, Tensor] = {}
        """This rank's own tensors, by name, while ``bare`` and ``optimizer`` hold the mean."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(every=1, warmup_steps=0)

    def wrap(self, model: nn.Module) -> nn.Module:
        self._shards = len(plan_rank_shards(self.virtual_shards, self.replica, self.replicas))
        # A rank with more samples weighs more, so that every sample weighs the same.
        self.meeting = self.build_meeting(model, self._shards / self.virtual_shards)
        return model

    def build_meeting(self, model: nn.Module, share: float) -> Averaging:
        """The object that averages the ranks' weights."""
        return Averaging(model, every=self.every, after=self.warmup_steps, share=share)

    # -- a step ---------------------------------------------------------------------------------

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        (loss * (weight / self._shards)).backward()

    def finish(self) -> None:
        """Averages the gradients over all ranks in the warm-up; later each rank keeps its own."""
        if self.meeting.is_local(self.steps):
            fill_gradients(self.bare.parameters())
        else:
            average_gradients(self.bare.parameters(), share=self.meeting.share)

    def step(self, number: int) -> None:
        super().step(number)
        met = self.meeting.after_step(number)
        if self.place.world_size > 1:
            local = {MOMENT, WEIGHT} if self.meeting.is_local(number) else set()
            self._drifted |= {STATISTIC, *local}
        if met:
            self._drifted -= {WEIGHT, STATISTIC}

    # -- checkpoints and tests ------------------------------------------------------------------

    def before_save(self) -> None:
        drifted = self._find_drifted()
        self._own_weights = {name: tensor.clone() for name, tensor in drifted.items()}
        average(drifted.values(), share=self.meeting.share)

    def after_save(self) -> None:
        drifted = self._find_drifted() if self._own_weights else {}
        for name, weight in self._own_weights.items():
            drifted[name].copy_(weight)
        self._own_weights = {}

    def memory(self) -> dict[str, Tensor]:
        return {name: share_row(weight) for name, weight in self._own_weights.items()}

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.meeting.restart()
        self._drifted = set()
        for kind, name, tensor in self._name_tensors():
            row = take_row(saved[kind + name]) if kind + name in saved else None
            if row is not None:
                tensor.copy_(row)
                self._drifted.add(kind)

    def gather_weights(self) -> dict[str, Tensor]:
        with ready_to_save(self):
            return {name: tensor.clone() for name, tensor in self.bare.state_dict().items()}

    def _find_drifted(self) -> dict[str, Tensor]:
        return {
            kind + name: tensor
            for kind, name, tensor in self._name_tensors()
            if kind in self._drifted
        }

    def _name_tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        for name, tensor in find_weights(self.bare).items():
            yield WEIGHT, name, tensor
        for name, tensor in find_statistics(self.bare).items():
            yield STATISTIC, name, tensor
        for name, parameter in self.bare.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                # Step counters are equal on all ranks, and their mean would be rounded.
                if isinstance(value, Tensor) and value.is_floating_point() and key != "step":
                    yield MOMENT, f"{name}.{key}", value


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
