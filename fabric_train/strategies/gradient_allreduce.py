"""Bagua's GradientAllReduce: the mean of all gradients in full precision, which is ``ddp``.

The same code, options, memory, and bytes of a step: 4 * 2 (W - 1) / W * n for n weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fabric_train.strategies.ddp import Ddp


@dataclass
class GradientAllreduce(Ddp):
    """The same as ``ddp``, under Bagua's name."""

    name: ClassVar[str] = "bagua:gradient_allreduce"
