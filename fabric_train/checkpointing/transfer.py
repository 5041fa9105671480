"""Training that begins with another training's weights, some of which stay as they are.

weights = read_pretrained(folder / "pretrained.pt", make, ranks)
model.load_state_dict(weights, strict=False)
freeze(model, weights)
saver.only_trained = True
saver.config["pretrained"] = digest_weights(weights)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fabric_train.checkpointing.durable import write_file
from fabric_train.ranks import Ranks


def read_pretrained(
    path: Path, make: Callable[[], Mapping[str, Tensor]], ranks: Ranks
) -> dict[str, Tensor]:
    """The weights in ``path``, which rank 0 reads or makes, on all ranks; all ranks must call it.

    Kept in a file, because another processor would make other weights, which would not fit
    checkpoints that leave these out.
    """

    def read_tensors() -> dict[str, Tensor]:
        if not path.exists():
            made = {name: weight.detach().cpu().contiguous() for name, weight in make().items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, lambda file: torch.save(made, file))
        return dict(torch.load(path, weights_only=True))

    return ranks.spread(read_tensors)


def freeze(model: nn.Module, names: Container[str]) -> None:
    """Freezes the weights with these names; call it before an optimizer is built."""
    for name, weight in model.named_parameters():
        if name in names:
            weight.requires_grad_(False)


def group_weights(
    weights: Iterable[nn.Parameter], model: nn.Module, pretrained: Container[str]
) -> list[dict[str, Any]]:
    """New and pretrained weights, in separate groups that can have learning rates of their own."""
    names = {weight: name for name, weight in model.named_parameters()}
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for weight in weights:
        if weight.requires_grad:
            groups[names.get(weight) in pretrained].append(weight)
    return [{"params": group} for group in groups if group]
