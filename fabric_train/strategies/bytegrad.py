"""DDP whose gradients are sent in 8 bits (Bagua's ByteGrad).

``fabric_train.communication.bytegrad`` has the mathematics and its source. Memory: as ``ddp``, and
the gradients once more in 8 bits. Bytes of a step: a quarter of ``ddp``'s, 2 (W - 1) / W * n *
(1 + 8 / 512) for n weights. Nothing is remembered from step to step. Within 512 gradients that
share a scale, those below 1/510 of the span are rounded to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.bytegrad import ByteGradHook
from fabric_train.strategies.hooked import HookedDdp


@dataclass
class ByteGrad(HookedDdp):
    """DDP whose gradients travel in 8 bits, with a scale for each 512 of them."""

    name: ClassVar[str] = "bagua:bytegrad"

    def attach(self, ddp: DistributedDataParallel) -> None:
        ByteGradHook().attach(ddp)
