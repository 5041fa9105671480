"""The training state: all that a checkpoint holds and a resumed run needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from train.config import TrainConfig, fingerprint
from train.errors import InputError
from train.randomness import restore_generators, seed_generators


@dataclass(kw_only=True)
class TrainState:
    """What changes while training; everything else follows from the config.

    ``model`` and ``optimizer`` are the bare ones, so that a checkpoint does not depend on what
    Fabric wraps around them. ``step`` counts optimizer steps since the very first start; epoch and
    place within it follow from it. ``train_loss`` is the mean of the newest epoch.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    train_loss: float = float("nan")


def capture_state(
    state: TrainState,
    config: TrainConfig,
    *,
    epoch: int,
    generators: list[dict[str, Any]],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """The checkpoint's content; ``generators`` are all ranks', in the order of ranks.

    ``facts`` are what the weights' bits depend on beside the options: see ``check_fits``.

    Refers to the live tensors: write it before the next step.
    """
    return {
        "step": state.step,
        "epoch": epoch,
        "train_loss": state.train_loss,
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "generators": generators,
        "config": fingerprint(config),
        "facts": dict(facts),
    }


def check_fits(
    payload: Mapping[str, Any], state: TrainState, config: TrainConfig, facts: Mapping[str, str]
) -> None:
    """Raises InputError that names each option, weight and fact that is not the checkpoint's."""
    differences = find_differences(payload["config"], fingerprint(config))
    differences += find_differences(shapes(payload["model"]), shapes(state.model.state_dict()))
    differences += find_differences(payload.get("facts", {}), facts)
    if differences:
        raise InputError(
            "the checkpoint is of another training: " + "; ".join(differences),
            "give the earlier values, or start anew with another --checkpoint_dir",
        )


def restore_state(
    payload: dict[str, Any],
    state: TrainState,
    *,
    seed: int,
    rank: int,
    world_size: int,
    device: torch.device,
) -> None:
    """Continues from a checkpoint that ``check_fits``.

    A rank continues its own generators; in a world of another size no rank has any, and all are
    seeded for this step.
    """
    state.model.load_state_dict(payload["model"])
    state.optimizer.load_state_dict(payload["optimizer"])
    state.step = payload["step"]
    state.train_loss = payload["train_loss"]
    if len(payload["generators"]) == world_size:
        restore_generators(payload["generators"][rank], device)
    else:
        seed_generators(seed, state.step, rank)


def find_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line for each key whose values are not equal, sorted by key."""
    return [
        f"{key} is {current.get(key, 'absent')}, was {saved.get(key, 'absent')}"
        for key in sorted(saved.keys() | current.keys())
        if saved.get(key, "absent") != current.get(key, "absent")
    ]


def shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of every weight, by name."""
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def digest_weights(model: nn.Module) -> str:
    """SHA-256 over a replicated model's weights and buffers: names, types, shapes and bytes.

    In the order of names, so that neither the world nor the strategy has a say in it.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)};".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
