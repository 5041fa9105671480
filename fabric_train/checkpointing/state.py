"""The training state: what changes with every step and is saved in checkpoints."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from fabric_train.launch.precision import LossScaler


@dataclass(kw_only=True)
class TrainState:
    """What changes while training; everything else follows from the config.

    ``model`` and ``optimizer`` are not wrapped, so that a checkpoint does not depend on Fabric's
    wrappers. ``step`` counts optimizer steps and ``sample`` counts samples since the first start;
    the epoch and the place in it follow from ``sample``. ``train_loss`` is the mean of the last
    whole epoch, ``epoch_loss`` the sum over ``epoch_steps`` of the current one. ``best_loss`` is
    the lowest validation loss, ``stale_epochs`` how many epochs have not fallen below it.
    ``scaler`` is set in ``16-mixed`` only.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    sample: int = 0
    train_loss: float = float("nan")
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    best_loss: float = math.inf
    stale_epochs: int = 0
    scaler: LossScaler | None = None

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the tensors and the step; JSON has no NaN."""
        return {
            "train_loss": self.train_loss if math.isfinite(self.train_loss) else None,
            "sample": self.sample,
            "epoch_loss": self.epoch_loss,
            "epoch_steps": self.epoch_steps,
            "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
            "stale_epochs": self.stale_epochs,
            **({"scaler": self.scaler.to_json()} if self.scaler else {}),
        }

    def state_dict(self) -> dict[str, Any]:
        """What another rank needs to go on from here, beside the tensors."""
        return {"step": self.step, **self.to_json()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""
        self.step = state_dict["step"]
        self.load_json(state_dict)

    def load_json(self, values: Mapping[str, Any]) -> None:
        """The reverse of ``to_json``."""
        loss = values["train_loss"]
        self.train_loss = math.nan if loss is None else loss
        self.sample, self.epoch_loss = values["sample"], values["epoch_loss"]
        self.epoch_steps = values["epoch_steps"]
        best = values.get("best_loss")
        self.best_loss = math.inf if best is None else best
        self.stale_epochs = values.get("stale_epochs", 0)
        if self.scaler and "scaler" in values:
            self.scaler.load_json(values["scaler"])


def has_finite_weights(model: nn.Module) -> bool:
    """Whether this rank's part of every weight is finite; waits for the device once."""
    parts = (
        weight.to_local() if isinstance(weight, DTensor) else weight
        for weight in model.parameters()
    )
    # Tests the largest magnitude, because isfinite of a weight needs memory for a copy of it.
    finite = [
        torch.linalg.vector_norm(part.detach(), math.inf).isfinite()
        for part in parts
        if part.is_floating_point() and part.numel()
    ]
    # Layers may lie on several devices.
    return not finite or bool(torch.stack([each.to(finite[0].device) for each in finite]).all())


def digest_weights(model: nn.Module | Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over a model's whole weights and buffers: names, types, shapes and bytes.

    Sorted by name, so that it depends on neither the world nor the strategy. For a model whose
    ranks hold parts of it, pass what ``Strategy.gather_weights`` returns.
    """
    weights = model.state_dict() if isinstance(model, nn.Module) else model
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)};".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
