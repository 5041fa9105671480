"""Digits 5 to 9 for a network that has learned 0 to 4, on scikit-learn's handwritten digits."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from train.config import TrainConfig
from train.metrics import Measures
from train.workloads import digits

NUM_CLASSES = 5
"""Classes of each half of the digits."""
TEST_BATCH_SIZE = 512
PRETRAINED = "backbone."
"""Prefix of the names of the weights that come from digits 0 to 4."""
EPOCHS, BATCH_SIZE, LR = 4, 32, 3e-3
"""Settings of the pretraining, which takes a second."""


def load(config: TrainConfig) -> tuple[TensorDataset, TensorDataset]:
    """Images of 5 to 9, as classes 0 to 4: ([n, 1, 8, 8] in 0..1, [n])."""
    train, test = digits.load(config)
    return choose(train, first=NUM_CLASSES), choose(test, first=NUM_CLASSES)


def choose(dataset: TensorDataset, *, first: int) -> TensorDataset:
    """The samples of five digits from ``first`` on, numbered from 0."""
    images, labels = dataset.tensors
    wanted = (labels >= first) & (labels < first + NUM_CLASSES)
    return TensorDataset(images[wanted], labels[wanted] - first)


def build_model(config: TrainConfig) -> nn.Module:
    """The network of ``digits`` for five classes, split into ``backbone`` and ``head``."""
    *backbone, head = digits.build_model(config).children()
    assert isinstance(head, nn.Linear)
    last = nn.Linear(head.in_features, NUM_CLASSES)
    return nn.Sequential(OrderedDict(backbone=nn.Sequential(*backbone), head=last))


def pretrain(config: TrainConfig) -> dict[str, torch.Tensor]:
    """The backbone's weights after training on digits 0 to 4; torch's generators do not change."""
    images, labels = choose(digits.load(config)[0], first=0).tensors
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = build_model(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(labels)).split(BATCH_SIZE):
                cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
                optimizer.zero_grad()
    weights = model.state_dict()
    return {name: weights[name] for name in weights if name.startswith(PRETRAINED)}


def describe_loss(test_loss: float) -> Measures:
    """No further measure."""
    return {}
