"""A small CNN on scikit-learn's bundled handwritten digits: 1,797 images of 8 x 8 pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from train.config import TrainConfig
from train.metrics import Measures

NUM_CLASSES = 10
TEST_BATCH_SIZE = 512
TRAIN_SIZE = 1440
SPLIT_SEED = 0
"""Never the run's seed: accuracies of different seeds compare only on the same test set."""


def load(config: TrainConfig) -> tuple[TensorDataset, TensorDataset]:
    """1,440 images to train on and 357 to test on: ([n, 1, 8, 8] in 0..1, [n] class numbers)."""
    # Imported here: a quarter of a second that the other workloads need not pay.
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(len(labels)))
    train, test = order[:TRAIN_SIZE], order[TRAIN_SIZE:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model(config: TrainConfig) -> nn.Module:
    """Three convolutions to logits of shape [batch, 10].

    GroupNorm by default, because BatchNorm's statistics depend on how many samples a rank holds.
    """
    norm = nn.BatchNorm2d if config.batch_norm else partial(nn.GroupNorm, 8)
    return nn.Sequential(
        *convolution(1, 32, norm),
        *convolution(32, 64, norm),
        nn.MaxPool2d(2),
        *convolution(64, 64, norm),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *([nn.Dropout(config.dropout)] if config.dropout else []),
        nn.Linear(64 * 2 * 2, NUM_CLASSES),
    )


def describe_loss(test_loss: float) -> Measures:
    """No further measure."""
    return {}


def convolution(
    inputs: int, outputs: int, norm: Callable[[int], nn.Module]
) -> tuple[nn.Module, ...]:
    """A 3 x 3 convolution that keeps the image size, with norm and activation."""
    return (
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        norm(outputs),
        nn.ReLU(),
    )
