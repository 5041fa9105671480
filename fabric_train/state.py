"""The training state: what changes with every step, and all that a resumed run needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(kw_only=True)
class TrainState:
    """What changes while training; everything else follows from the config.

    ``model`` and ``optimizer`` are the bare ones, so that a checkpoint does not depend on what
    Fabric wraps around them. ``step`` counts optimizer steps since the very first start, ``sample``
    the samples that they took; epoch and place within it follow from that. ``train_loss`` is the
    mean of the newest whole epoch, ``epoch_loss`` the sum over ``epoch_steps`` of the present one.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    sample: int = 0
    train_loss: float = float("nan")
    epoch_loss: float = 0.0
    epoch_steps: int = 0


def digest_weights(model: nn.Module) -> str:
    """SHA-256 over a replicated model's weights and buffers: names, types, shapes and bytes.

    In the order of names, so that neither the world nor the strategy has a say in it.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)};".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
