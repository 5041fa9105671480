"""Every rank trains its own weights and averages them with its peers' (Bagua's decentralized SGD).

``fabric_train.communication.decentralized`` has the mathematics and its sources.

``bagua:decentralized``: memory: the weights twice more while they are sent. Bytes of a step: with
``all`` peers an all-reduce's, 4 * 2 (W - 1) / W * n for n weights; with ``shift_one`` 4 n to one
peer, whatever W is. Both are sent while the gradients are computed. ``shift_one`` needs an even
number of processes.

``bagua:low_precision_decentralized``: memory: the weights three times more. Bytes of a step:
n * (1 + 8 / 512) to each of two neighbours, whatever W is, after the step.

In both, each rank clips its own gradients. ``replicas.Replicas`` says how the ranks' weights become
one for checkpoints and tests.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from fabric_train.communication.decentralized import LowPrecisionRing, PeerAverage
from fabric_train.errors import InputError
from fabric_train.strategies.replicas import Replicas
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


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
