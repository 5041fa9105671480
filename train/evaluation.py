"""What the trained model is worth, on samples that it has not seen."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from train.report import Metrics
from train.sampler import ShardSampler

TEST_BATCH_SIZE = 512


def evaluate(
    fabric: Fabric, model: nn.Module, test_set: TensorDataset, num_classes: int
) -> Metrics:
    """Accuracy and loss over the whole test set, each image counted once in the whole world.

    ``model`` is the bare one; all ranks must call it.
    """
    loader = DataLoader(
        test_set,
        batch_size=None,
        sampler=ShardSampler(
            size=len(test_set),
            batch_size=TEST_BATCH_SIZE,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        ),
    )
    accuracy = MulticlassAccuracy(num_classes, average="micro").to(fabric.device)
    loss = MeanMetric().to(fabric.device)
    samples = SumMetric().to(fabric.device)
    model.eval()
    with torch.no_grad():
        for inputs, targets in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
            with fabric.autocast():
                outputs = model(inputs).float()
            accuracy.update(outputs, targets)
            loss.update(cross_entropy(outputs, targets), weight=len(targets))
            samples.update(len(targets))
    return {
        "test_accuracy": accuracy.compute().item(),
        "test_loss": loss.compute().item(),
        "test_samples": int(samples.compute().item()),
    }
