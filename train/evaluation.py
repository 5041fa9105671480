"""Accuracy and loss of the trained model on the test set, and the file of predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from fabric_train.checkpointing.durable import write_file
from fabric_train.checkpointing.memory import ready_to_save
from fabric_train.errors import DivergedError
from fabric_train.ranks import Ranks
from fabric_train.sampling.sampler import ShardSampler
from fabric_train.strategies.strategy import Strategy
from train.metrics import Scores
from train.workloads import Workload

PREDICTIONS_FILE = "predictions.csv"
GATHER_LIMIT_S = 600.0
"""How long rank 0 waits for the predictions of the slowest rank."""


def evaluate(
    fabric: Fabric, strategy: Strategy, test_set: TensorDataset, workload: Workload
) -> Scores:
    """Accuracy and loss over the whole test set; each sample counts once over all ranks.

    All ranks must call it. Raises DivergedError, on all ranks, if the loss is not finite.
    """
    accuracy = MulticlassAccuracy(workload.NUM_CLASSES, average="micro").to(fabric.device)
    # By default it leaves out a batch whose loss is NaN.
    loss = MeanMetric(nan_strategy=math.nan).to(fabric.device)
    samples = SumMetric().to(fabric.device)
    for outputs, targets in run_over(fabric, strategy, test_set, workload):
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


def predict(
    fabric: Fabric, strategy: Strategy, samples: TensorDataset, workload: Workload, path: Path
) -> None:
    """Writes each sample's number, predicted class and probability, one line each, in order.

    The lines are the same in every world. All ranks must call it; rank 0 writes.
    """
    inputs = samples.tensors[0]
    # Each output comes back with the number of its sample, whichever rank computed it.
    numbered = TensorDataset(inputs, torch.arange(len(inputs)))
    rows: dict[int, tuple[list[int], float]] = {}
    for outputs, numbers in run_over(fabric, strategy, numbered, workload):
        highest, classes = torch.softmax(outputs, dim=-1).max(dim=-1)
        means = highest.flatten(1).mean(1) if highest.dim() > 1 else highest
        for number, classes_of_one, probability in zip(
            numbers.tolist(), classes.tolist(), means.tolist(), strict=True
        ):
            several = classes_of_one if isinstance(classes_of_one, list) else [classes_of_one]
            rows[number] = (several, probability)
    every = Ranks(GATHER_LIMIT_S).gather(rows)
    if fabric.global_rank == 0:
        merged = {number: row for part in every for number, row in part.items()}
        lines = ["sample,prediction,probability"]
        lines += [
            f"{number},{' '.join(map(str, classes))},{probability:.6f}"
            for number, (classes, probability) in sorted(merged.items())
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))


def run_over(
    fabric: Fabric, strategy: Strategy, samples: TensorDataset, workload: Workload
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields outputs [batch, ..., classes] and targets to score; each sample on one rank only."""
    share = ShardSampler(
        size=len(samples),
        batch_size=workload.TEST_BATCH_SIZE,
        rank=strategy.replica,
        world_size=strategy.replicas,
    )
    largest_share = -(-len(samples) // strategy.replicas)
    rounds = -(-largest_share // workload.TEST_BATCH_SIZE)
    loader = cast(
        "DataLoader[list[Tensor]]",
        fabric.setup_dataloaders(
            DataLoader(samples, batch_size=None, sampler=share), use_distributed_sampler=False
        ),
    )
    strategy.bare.eval()
    with ready_to_save(strategy), torch.no_grad():
        spare = [tensor.to(fabric.device) for tensor in samples[[0]]]
        for inputs, targets, is_own in take_equally(strategy, loader, rounds, spare):
            with fabric.autocast():
                outputs = strategy.predict(inputs)
            outputs, targets = strategy.gather_test(outputs.float(), targets, counts=is_own)
            if len(targets):
                yield outputs, targets


def take_equally(
    strategy: Strategy, loader: Iterable[Sequence[Tensor]], rounds: int, spare: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yields each batch of inputs and targets, and whether it counts.

    If replicas wait for each other's passes, one with fewer batches repeats its last batch (or
    ``spare`` if it has none), which does not count then.
    """
    taken = 0
    for batch in loader:
        taken, spare = taken + 1, batch
        yield batch[0], batch[1], True
    if strategy.equal_rounds:
        yield from ((spare[0], spare[1], False) for _ in range(rounds - taken))
