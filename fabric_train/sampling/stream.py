"""Virtual shards of data that is read in order and has no random access by index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from fabric_train.sampling.sampler import plan_rank_shards, plan_shard_size


class SampleSource(Protocol):
    """Samples in a fixed order with a seek, such as files with an offset table."""

    fingerprint: str
    """Changes with the samples or their order; save it in checkpoints, and compare it."""

    def __len__(self) -> int:
        """Samples of one pass."""

    def read_from(self, position: int) -> Iterator[Any]:
        """The samples from ``position`` in [0, len) to the end; seeks instead of reading.

        Called for each pass, and in each worker process.
        """


class StreamShards(IterableDataset[Any]):
    """Yields one collated batch for each virtual shard of this rank, as GlobalBatchSampler does.

    Samples come in the source's order, pass after pass; a batch may reach over the end of a pass.
    For ``DataLoader(..., batch_size=None)`` with any number n of worker processes: each reads every
    n-th shard, because the loader asks them in turn.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        global_batch_size: int,
        virtual_shards: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.shards = plan_rank_shards(virtual_shards, rank, world_size)
        self._source = source
        self._global_batch_size = global_batch_size
        self._shard_size = plan_shard_size(global_batch_size, virtual_shards)
        # Shared, because persistent worker processes keep their copies of this object.
        self._span = torch.zeros(2, dtype=torch.int64).share_memory_()

    def seek(self, *, first_step: int, stop_step: int) -> None:
        """Makes the next iteration cover these steps; earlier samples are not read."""
        self._span.copy_(torch.tensor((first_step, stop_step)))

    def __iter__(self) -> Iterator[Any]:
        reader = Reader(self._source)
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        steps = range(*self._span.tolist())
        places = ((step, shard) for step in steps for shard in self.shards)
        for step, shard in islice(places, first, None, every):
            start = step * self._global_batch_size + shard * self._shard_size
            yield default_collate(reader.read_span(start, start + self._shard_size))


class Reader:
    """Reads spans of the endless sequence of passes; seeks only if a span does not follow the last.

    Not thread-safe.
    """

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._samples: Iterator[Any] = iter(())
        self._next = -1

    def read_span(self, start: int, stop: int) -> list[Any]:
        """The samples [start, stop), counted over all passes."""
        samples: list[Any] = []
        for epoch, places in split_at_epochs(start, stop, len(self._source)):
            first = epoch * len(self._source) + places.start
            if first != self._next or not places.start:
                self._samples = self._source.read_from(places.start)
            samples += [next(self._samples) for _ in places]
            self._next = first + len(places)
        return samples


def split_at_epochs(start: int, stop: int, size: int) -> Iterator[tuple[int, range]]:
    """Cuts the span [start, stop) of an endless row of epochs into (epoch, places) pairs."""
    while start < stop:
        epoch, place = divmod(start, size)
        end = min(stop, (epoch + 1) * size)
        yield epoch, range(place, place + end - start)
        start = end
