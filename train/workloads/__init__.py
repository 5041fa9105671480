"""What can be trained, by the name that ``--workload`` takes."""

from __future__ import annotations

from typing import Protocol

from torch import nn
from torch.utils.data import TensorDataset

from train.workloads import digits


class Workload(Protocol):
    """What a workload's module offers."""

    NUM_CLASSES: int

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """The training and the test set; each node's first process calls it before the others."""

    def build_model(self) -> nn.Module:
        """A model with weights drawn from torch's generator."""


WORKLOADS: dict[str, Workload] = {"digits": digits}
