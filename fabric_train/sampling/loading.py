"""Cuts the batches of any DataLoader for the ranks, so that a start in any world resumes exactly.

    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
    loader = share_loader(
        loader, rank=rank, world_size=world_size, seed=0, place=lambda: (state.epoch, state.batch)
    )

The global batch stays that of the first start: ``batch_size`` of all its ranks. Each rank takes its
share of it, from the place that the training has reached, not the one that workers have read to.
Each epoch has an order of its own, and random numbers follow from the batch and the rank, in worker
processes too.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    get_worker_info,
)

from fabric_train.determinism import derive_seed, seed_generators
from fabric_train.errors import InputError
from fabric_train.loop.preemption import ignore_sigterm
from fabric_train.sampling.stream import Reader


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


FETCH = 1
"""Ends the place that seeds the reading of a batch, so that the seed differs from the step's."""

Place = Callable[[], tuple[int, int]]
"""The epoch, and how many of its batches are trained."""


@dataclass(frozen=True, kw_only=True)
class EpochCut:
    """How an epoch of ``size`` samples is cut: a rank's share of each global batch.

    Raises InputError if the ranks' shares would differ, with the numbers that work, and if there is
    nothing to train on.
    """

    size: int
    global_batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    seed: int

    def __post_init__(self) -> None:
        total = self.global_batch_size
        if total % self.world_size:
            worlds = [n for n in range(1, total + 1) if total % n == 0]
            raise InputError(
                f"{self.world_size} processes cannot share the global batch of {total} samples "
                "that this training began with",
                "start " + ", ".join(map(str, worlds[:12])) + " processes",
            )
        if not len(self):
            raise InputError(
                f"the {self.size} samples are fewer than the global batch of {total}, and "
                "drop_last leaves them out: there is nothing to train on",
                "drop_last=False, or a batch_size of at most "
                f"{max(1, self.size // self.world_size)}",
            )

    @property
    def tail(self) -> int:
        """Samples of the epoch's incomplete last batch; 0 if there is none."""
        return 0 if self.drop_last else self.size % self.global_batch_size

    def __len__(self) -> int:
        return self.size // self.global_batch_size + (self.tail > 0)

    def share(self, batch: int) -> range:
        """This rank's places in the epoch; ranks share a sample only if the batch has too few."""
        start = batch * self.global_batch_size
        samples = min(self.global_batch_size, self.size - start)
        if samples < self.world_size:
            place = start + self.rank % samples
            return range(place, place + 1)
        shares = (samples * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return range(*(start + share for share in shares))


class Batch(list[Any]):
    """The indices of a batch, with the place that seeds its reading."""

    place: tuple[int, ...] = ()


class GlobalBatches(Sampler[Batch]):
    """This rank's share of each global batch, in any sampler's order, from ``place`` on.

    All ranks draw the same order for an epoch, because it is seeded with the epoch.
    """

    def __init__(self, sampler: Iterable[int], cut: EpochCut, place: Place) -> None:
        self._sampler, self._cut, self._place = sampler, cut, place

    def __len__(self) -> int:
        return len(self._cut)

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self._place()
        return self._cut_batches(epoch, first % max(1, len(self)), self._draw_order(epoch))

    def _draw_order(self, epoch: int) -> list[int]:
        generator = getattr(self._sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(derive_seed(self._cut.seed, epoch))
        set_epoch(self._sampler, epoch)
        seed_generators(self._cut.seed, epoch)
        return list(self._sampler)

    def _cut_batches(self, epoch: int, first: int, order: list[int]) -> Iterator[Batch]:
        for number in range(first, len(self)):
            share = self._cut.share(number)
            batch = Batch(order[share.start : share.stop])
            batch.place = (self._cut.seed, epoch, number, self._cut.rank, FETCH)
            yield batch


class Seeded(Dataset[Any]):
    """A data set whose random numbers follow from the batch, in whichever process reads it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, batch: Batch) -> list[Any]:
        seed_generators(*batch.place)
        if read_all := getattr(self.dataset, "__getitems__", None):
            return list(read_all(list(batch)))
        return [self.dataset[index] for index in batch]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # pickle asks before it is set
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Spans(IterableDataset[list[Any]]):
    """This rank's share of each global batch of a ``SampleSource``, in its order."""

    def __init__(self, source: Any, cut: EpochCut) -> None:
        self._source, self._cut = source, cut
        # Shared, because persistent worker processes keep their copies of this object.
        self._span = torch.zeros(2, dtype=torch.int64).share_memory_()

    def seek(self, epoch: int, first: int) -> None:
        """Where the next iteration begins."""
        self._span.copy_(torch.tensor((epoch, first)))

    def __len__(self) -> int:
        return len(self._cut)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, first = self._span.tolist()
        set_epoch(self._source, epoch)
        reader = Reader(self._source)
        worker = get_worker_info()
        number, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in range(first + number, len(self), every):
            seed_generators(self._cut.seed, epoch, batch, self._cut.rank, FETCH)
            share = self._cut.share(batch)
            yield reader.read_span(share.start, share.stop)


class Seeks(Sampler[None]):
    """The sampler of ``Spans``: makes it seek when a loader begins, in the main process."""

    def __init__(self, spans: Spans, place: Place) -> None:
        self._spans, self._place = spans, place

    def __iter__(self) -> Iterator[None]:
        epoch, first = self._place()
        first %= max(1, len(self._spans))
        self._spans.seek(epoch, first)
        return iter([None] * (len(self._spans) - first))


class Skipping:
    """Reads a loader again, and leaves out the batches that are trained."""

    def __init__(self, loader: Any, seed: int, rank: int, place: Place) -> None:
        self.loader, self._seed, self._rank, self._place = loader, seed, rank, place

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self._place()
        seed_generators(self._seed, epoch, self._rank, FETCH)
        return islice(iter(self.loader), first, None)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def find_order(loader: Any) -> Iterable[int] | None:
    """The order in which a loader reads a data set by index; None if it reads in another way."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    sampler = loader.sampler
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return None
    if isinstance(sampler, DistributedSampler):  # yields one rank's share
        dataset = sampler.dataset
        return RandomSampler(dataset) if sampler.shuffle else SequentialSampler(dataset)  # type: ignore[arg-type]
    return sampler if hasattr(sampler, "__len__") else None


def find_source(loader: Any) -> Any:
    """The ``SampleSource`` that a loader reads in order; None if it reads in another way."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None:
        return None
    source = loader.dataset
    return source if hasattr(source, "read_from") and hasattr(source, "__len__") else None


def change_loader(
    loader: DataLoader[Any], order: Iterable[int] | None, cut: EpochCut, place: Place
) -> DataLoader[Any]:
    """A copy with other batches, not a new object: a subclass's arguments are unknown."""
    new = copy.copy(loader)
    changed: dict[str, Any]
    if order is not None:
        changed = {
            "dataset": Seeded(loader.dataset),
            "batch_sampler": GlobalBatches(order, cut, place),
        }
    else:
        spans = Spans(loader.dataset, cut)
        changed = {"dataset": spans, "sampler": Seeks(spans, place)}
        changed |= {"batch_sampler": None, "batch_size": None}
    changed["worker_init_fn"] = partial(start_worker, loader.worker_init_fn)
    vars(new).update(changed)  # DataLoader refuses assignment
    return new


def start_worker(init: Callable[[int], object] | None, worker_id: int) -> None:
    """Starts a worker process, which SIGTERM must not end before the training has committed."""
    ignore_sigterm(worker_id)
    if init:
        init(worker_id)


def set_epoch(reader: object, epoch: int) -> None:
    """Tells a sampler or a source the epoch, if it has ``set_epoch``."""
    if callable(set_reader_epoch := getattr(reader, "set_epoch", None)):
        set_reader_epoch(epoch)
