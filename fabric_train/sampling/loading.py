"""A DataLoader of any data set, cut for the ranks of a loop of one's own.

    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
    loader = share_loader(
        loader, rank=rank, world_size=world_size, seed=0, place=lambda: (state.epoch, state.batch)
    )

Each epoch has an order of its own, a resume continues at the exact batch, and random numbers follow
from the batch and the rank, in worker processes too.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from fabric_train.errors import InputError
from fabric_train.trainers.loaders import (
    EpochCut,
    Place,
    change_loader,
    find_order,
    find_source,
    set_epoch,
)


def share_loader(
    loader: DataLoader[Any],
    *,
    rank: int,
    world_size: int,
    seed: int,
    place: Place,
    global_batch_size: int | None = None,
) -> DataLoader[Any]:
    """The same loader with this rank's share of each global batch, from ``place`` on.

    ``place`` is called whenever an epoch begins or resumes, and returns the epoch and how many of
    its batches are trained. ``global_batch_size``: samples of all ranks, by default ``batch_size``
    times ``world_size``; a training that resumes in another world passes that of its first start. A
    sampler gets the epoch by ``set_epoch``. An iterable data set needs ``__len__``, and must yield
    all samples in every process, in one order for each ``set_epoch``; with the ``read_from`` of a
    ``SampleSource`` other ranks' samples are not read. Raises InputError for a loader that cannot
    be cut.
    """
    order, source = find_order(loader), find_source(loader)
    if order is None and source is None:
        loader, source = reread(loader)
    size = len(source if order is None else order)  # type: ignore[arg-type]
    cut = EpochCut(
        size=size,
        global_batch_size=global_batch_size or (loader.batch_size or 1) * world_size,
        rank=rank,
        world_size=world_size,
        drop_last=bool(loader.drop_last),
        seed=seed,
    )
    return change_loader(loader, order, cut, place)


def reread(loader: DataLoader[Any]) -> tuple[DataLoader[Any], Rereading]:
    """A copy of the loader whose iterable data set can start anywhere, and that data set."""
    dataset = loader.dataset
    if loader.batch_size is None or not isinstance(dataset, IterableDataset):
        raise InputError(
            "the loader has a batch sampler of its own, or batch_size=None: its batches cannot be "
            "cut for the ranks",
            "DataLoader(dataset, batch_size=N, sampler=...)",
        )
    if not hasattr(dataset, "__len__"):
        raise InputError(
            f"{type(dataset).__name__} is iterable and has no length, so nobody knows where an "
            "epoch ends",
            f"give {type(dataset).__name__} a method __len__: the samples of an epoch",
        )
    source, new = Rereading(dataset), copy.copy(loader)
    vars(new)["dataset"] = source  # DataLoader refuses assignment
    return new, source


class Rereading:
    """An iterable data set as a ``SampleSource``: reads and drops the samples before a position.

    Continues from its present place if the position lies ahead, so an epoch is read once.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._at = dataset, 0
        self._samples: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next reading begin at the first sample."""
        set_epoch(self._dataset, epoch)
        self._samples = None

    def read_from(self, position: int) -> Iterator[Any]:
        """The samples from ``position`` on."""
        if self._samples is None or position < self._at:
            self._samples, self._at = iter(self._dataset), 0
        # Dropped samples may draw random numbers too, which must not change those of the batch.
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        deque(islice(self._samples, position - self._at), maxlen=0)
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        self._at = position
        return self._go_on(self._samples)

    def _go_on(self, samples: Iterator[Any]) -> Iterator[Any]:
        for sample in samples:
            self._at += 1
            yield sample
