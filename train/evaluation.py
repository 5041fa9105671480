"""Accuracy and loss of the trained model on the test set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from fabric_train.errors import DivergedError
from fabric_train.memory import ready_to_save
from fabric_train.sampler import ShardSampler
from fabric_train.strategies.strategy import Strategy
from train.metrics import Scores
from train.workloads import Workload


def evaluate(
    fabric: Fabric, strategy: Strategy, test_set: TensorDataset, workload: Workload
) -> Scores:
    """Accuracy and loss over the whole test set; each sample counts once over all ranks.

    All ranks must call it. Raises DivergedError, on all ranks, if the loss is not finite.
    """
    share = ShardSampler(
        size=len(test_set),
        batch_size=workload.TEST_BATCH_SIZE,
        rank=strategy.replica,
        world_size=strategy.replicas,
    )
    largest_share = -(-len(test_set) // strategy.replicas)
    rounds = -(-largest_share // workload.TEST_BATCH_SIZE)
    loader = cast(
        "DataLoader[list[Tensor]]",
        fabric.setup_dataloaders(
            DataLoader(test_set, batch_size=None, sampler=share), use_distributed_sampler=False
        ),
    )
    accuracy = MulticlassAccuracy(workload.NUM_CLASSES, average="micro").to(fabric.device)
    # By default it leaves out a batch without a number.
    loss = MeanMetric(nan_strategy=math.nan).to(fabric.device)
    samples = SumMetric().to(fabric.device)
    strategy.bare.eval()
    with ready_to_save(strategy), torch.no_grad():
        spare = [tensor.to(fabric.device) for tensor in test_set[[0]]]
        for inputs, targets, is_own in take_equally(strategy, loader, rounds, spare):
            with fabric.autocast():
                outputs = strategy.predict(inputs)
            outputs, targets = strategy.gather_test(outputs.float(), targets, counts=is_own)
            if not len(targets):
                continue
            outputs, labels = outputs.flatten(0, -2), targets.flatten()
            accuracy.update(outputs, labels)
            loss.update(cross_entropy(outputs, labels), weight=len(labels))
            samples.update(len(targets))
    test_loss = loss.compute().item()
    if not math.isfinite(test_loss):
        raise DivergedError(
            f"the test loss is {test_loss}: the weights are finite, but the model's outputs are "
            "not. Start anew with another --checkpoint_dir and a lower learning rate (--lr)"
        )
    return {
        "test_accuracy": accuracy.compute().item(),
        "test_loss": test_loss,
        **workload.describe_loss(test_loss),
        "test_samples": int(samples.compute().item()),
    }


def take_equally(
    strategy: Strategy, loader: Iterable[Sequence[Tensor]], rounds: int, spare: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Each batch, and that it counts.

    Where a forward pass waits for the other replicas', one with fewer batches repeats its last, or
    ``spare`` if it has none.
    """
    taken = 0
    for batch in loader:
        taken, spare = taken + 1, batch
        yield batch[0], batch[1], True
    if strategy.equal_rounds:
        yield from ((spare[0], spare[1], False) for _ in range(rounds - taken))
