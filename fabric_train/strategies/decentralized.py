"""Every rank trains its own weights and averages them with its peers': in each step (Bagua's
decentralized SGD), or in the background (Bagua's async).

``fabric_train.communication.decentralized`` has the mathematics and its sources. For n weights and
W processes:

``bagua:decentralized``: memory: the weights twice more while they are sent. Bytes of a step: with
``all`` peers an all-reduce's, 4 * 2 (W - 1) / W * n; with ``shift_one`` 4 n to one peer, whatever W
is. Both are sent while the gradients are computed. ``shift_one`` needs an even number of processes.

``bagua:low_precision_decentralized``: memory: the weights three times more. Bytes of a step:
n * (1 + 8 / 512) to each of two neighbours, whatever W is, after the step.

``bagua:async``: memory: the weights twice more, on the host. Bytes of an average: 4 * 2 (W - 1) / W
* n. An average begins every ``sync_interval_ms``, or when the previous one has arrived, whichever
is later. When an average arrives depends on the machine, so two runs give different weights. In
every run the ranks' mean weights move by the mean of their steps, checkpoints and tests see the
mean of all ranks, and a resumed training goes on from that mean. If a rank dies or hangs, the
others' averages fail, at the latest after ``timeout_s``. Under ``python -m train`` no rank gets
more than about nine steps ahead, because the ranks agree on checkpoints that often; in a loop of
your own one may.

In all of them each rank clips its own gradients. ``Replicas`` says how the ranks' weights become
one for checkpoints and tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from fabric_train.communication.decentralized import AsyncAverage, LowPrecisionRing, PeerAverage
from fabric_train.communication.mean import average_gradients, bring_together
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import Device, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


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


@dataclass
class Decentralized(Replicas):
    """Each process trains weights of its own, and averages them with others' before each step,
    while gradients are computed.
    """

    name: ClassVar[str] = "bagua:decentralized"

    peer_selection_mode: Literal["all", "shift_one"] = "all"
    """Whom a rank averages with: `all` other ranks, or `shift_one`, a different one each time."""
    communication_interval: int = 1
    """Steps from one average to the next."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(communication_interval=1)
        size = world.world_size if world else 1
        if self.peer_selection_mode == "shift_one" and size > 1 and size % 2:
            raise InputError(
                f"--strategy {self.name}: shift_one pairs the processes, but there are {size}",
                "an even number of processes, or --strategy_options.peer_selection_mode all",
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        self._begun = False
        if self.place.world_size > 1:
            self._average = PeerAverage(self.weights, peers=self.peer_selection_mode)
        return model

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        due = self.steps % self.communication_interval == 0
        if self.place.world_size > 1 and due and not self._begun:
            self._average.start(self.steps // self.communication_interval)
            self._begun = True
        return super().sync(last=last)

    def finish(self) -> None:
        if self._begun:
            self._average.finish()
            self._begun = False


@dataclass
class LowPrecisionDecentralized(Replicas):
    """Each process sends two neighbours the change of its weights after each step, in 8 bits."""

    name: ClassVar[str] = "bagua:low_precision_decentralized"

    def wrap(self, model: nn.Module) -> nn.Module:
        self._ring = LowPrecisionRing(self.weights) if self.place.world_size > 1 else None
        return model

    def step(self, number: int) -> None:
        super().step(number)
        if self._ring is not None:
            self._ring.mix()

    def on_together(self) -> None:
        if self._ring is not None:
            self._ring.reset()


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
