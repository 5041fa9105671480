"""What can be trained, by the name that ``--workload`` takes; what the module of each offers."""

from __future__ import annotations

from typing import Protocol

from torch import nn
from torch.utils.data import TensorDataset

from train.config import TrainConfig
from train.metrics import Measures
from train.workloads import charlm, digits, transfer


class Workload(Protocol):
    """What a workload's module offers.

    Its data sets hold inputs and class numbers; its model gives a logit for each class in the last
    dimension, for one or many class numbers of a sample.
    """

    NUM_CLASSES: int
    TEST_BATCH_SIZE: int

    def load(self, config: TrainConfig) -> tuple[TensorDataset, TensorDataset]:
        """The training and the test set; each node's first process calls it before the others."""

    def build_model(self, config: TrainConfig) -> nn.Module:
        """A model with weights drawn from torch's generator."""

    def describe_loss(self, test_loss: float) -> Measures:
        """The test loss in the workload's usual measure, for metrics.json."""


WORKLOADS: dict[str, Workload] = {"digits": digits, "charlm": charlm, "transfer": transfer}
