"""Cuts the batches of a Trainer's own DataLoader, so that any start in any world resumes exactly.

The global batch stays that of the first start: ``batch_size`` of all its ranks. Each rank takes its
share of it, from the place that the training has reached, not the one that workers have read to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

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
from fabric_train.trainers.companion import Companion, ending

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
        return self._read(epoch, first % max(1, len(self)), self._draw_order(epoch))

    def _draw_order(self, epoch: int) -> list[int]:
        generator = getattr(self._sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(derive_seed(self._cut.seed, epoch))
        set_epoch(self._sampler, epoch)
        seed_generators(self._cut.seed, epoch)
        return list(self._sampler)

    def _read(self, epoch: int, first: int, order: list[int]) -> Iterator[Batch]:
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
            yield reader.read(share.start, share.stop)


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


def plan_cut(loader: DataLoader[Any], size: int, companion: Companion) -> EpochCut:
    """How this training cuts an epoch of a loader; ends the process if the data has changed.

    The global batch is that of the first start, whatever the world is now.
    """
    world_size = companion.saver.ranks.size
    companion.agree_on_facts(
        samples=size, batch_size=loader.batch_size, drop_last=bool(loader.drop_last)
    )
    total = companion.state.get("global_batch_size") or (loader.batch_size or 1) * world_size
    with ending():
        cut = EpochCut(
            size=size,
            global_batch_size=total,
            rank=companion.rank,
            world_size=world_size,
            drop_last=bool(loader.drop_last),
            seed=companion.seed,
        )
    companion.global_batch_size = total
    if 0 < cut.tail < world_size:
        companion.say(
            f"the last batch of an epoch has too few samples ({cut.tail}) for {world_size} "
            "processes, so some go to several; drop_last=True skips that batch"
        )
    return cut


def cut_loader(loader: Any, companion: Companion, place: Place) -> DataLoader[Any] | None:
    """The same loader with this rank's share of each global batch; None if it reads another way."""
    order, source = find_order(loader), find_source(loader)
    if order is None and source is None:
        return None
    cut = plan_cut(loader, len(source if order is None else order), companion)  # type: ignore[arg-type]
    return change_loader(loader, order, cut, place)


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
