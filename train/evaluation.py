"""Accuracy and loss of the trained model on the test set."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from fabric_train.sampler import ShardSampler
from train.metrics import Scores
from train.workloads import Workload


def evaluate(
    fabric: Fabric, model: nn.Module, test_set: TensorDataset, workload: Workload
) -> Scores:
    """Accuracy and loss over the whole test set; each sample counts once over all ranks.

    ``model`` must not be wrapped; all ranks must call it.
    """
    loader = DataLoader(
        test_set,
        batch_size=None,
        sampler=ShardSampler(
            size=len(test_set),
            batch_size=workload.TEST_BATCH_SIZE,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        ),
    )
    accuracy = MulticlassAccuracy(workload.NUM_CLASSES, average="micro").to(fabric.device)
    loss = MeanMetric().to(fabric.device)
    samples = SumMetric().to(fabric.device)
    model.eval()
    with torch.no_grad():
        for inputs, targets in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
            with fabric.autocast():
                outputs = model(inputs).float().flatten(0, -2)
            labels = targets.flatten()
            accuracy.update(outputs, labels)
            loss.update(cross_entropy(outputs, labels), weight=len(labels))
            samples.update(len(targets))
    test_loss = loss.compute().item()
    return {
        "test_accuracy": accuracy.compute().item(),
        "test_loss": test_loss,
        **workload.describe_loss(test_loss),
        "test_samples": int(samples.compute().item()),
    }
