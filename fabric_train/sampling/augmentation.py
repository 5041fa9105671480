"""Augmentation whose random draws depend on the sample and the epoch, not on the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset

from fabric_train.determinism import derive_seed

Transform = Callable[..., tuple[torch.Tensor, ...]]
"""Takes a generator and one sample's tensors, and changes these by that generator's draws only."""


class Lookup(Protocol):
    """A data set that takes a list of indices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: list[int]) -> tuple[torch.Tensor, ...]: ...


class Augmented(Dataset[Any]):
    """Changes every sample by random draws that follow from (seed, epoch, sample).

    A sample changes in each epoch, and changes alike on every rank, in every worker process and
    after restarts. Takes the (epoch, sample) pairs that ``GlobalBatchSampler`` yields with
    ``with_epochs``.
    """

    def __init__(self, dataset: Lookup, transform: Transform, *, seed: int) -> None:
        self._dataset = dataset
        self._transform = transform
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, visits: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        rows = zip(*self._dataset[[sample for _, sample in visits]], strict=True)
        changed = [self._change(visit, row) for visit, row in zip(visits, rows, strict=True)]
        return tuple(torch.stack(column) for column in zip(*changed, strict=True))

    def _change(
        self, visit: tuple[int, int], row: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(derive_seed(self._seed, *visit))
        return self._transform(generator, *row)


def shift(
    generator: torch.Generator, image: torch.Tensor, label: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Moves an image of shape [channel, height, width] by up to one pixel; edges become 0."""
    down, right = torch.randint(0, 3, (2,), generator=generator).tolist()
    height, width = image.shape[-2:]
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    return padded[..., down : down + height, right : right + width], label
