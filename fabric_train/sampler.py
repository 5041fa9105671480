"""Which samples each rank takes, as a function of seed and step alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from fabric_train.errors import InputError
from fabric_train.permutation import KeyedPermutation


def plan_rank_shards(virtual_shards: int, rank: int, world_size: int) -> range:
    """The virtual shards of one rank; raises InputError where a rank would have none."""
    if world_size > virtual_shards:
        raise InputError(
            f"{world_size} processes cannot share virtual_shards={virtual_shards}",
            f"--virtual_shards {world_size}, for a training that starts anew, or fewer processes",
        )
    return range(virtual_shards * rank // world_size, virtual_shards * (rank + 1) // world_size)


EXACT_SHARDS = 16
"""A default that does not depend on the world: any number of processes up to it computes alike."""


def plan_virtual_shards(
    given: int | None, *, global_batch_size: int, largest_world: int, exact: bool
) -> int:
    """How many equal parts each global batch is cut into.

    ``given``, or EXACT_SHARDS where results must not depend on the world, or the fewest that
    ``largest_world`` processes can share: each part costs a forward and a backward pass of its
    own. Raises InputError where the batch cannot be cut so.
    """
    if given is None and exact:
        given = EXACT_SHARDS
    if given is None:
        enough = range(largest_world, global_batch_size + 1)
        given = next((n for n in enough if global_batch_size % n == 0), largest_world)
    plan_shard_size(global_batch_size, given)
    return given


def plan_shard_size(global_batch_size: int, virtual_shards: int) -> int:
    """Samples of one virtual shard; raises InputError where the shards would differ."""
    if global_batch_size % virtual_shards:
        below = global_batch_size - global_batch_size % virtual_shards
        raise InputError(
            f"global_batch_size={global_batch_size} cannot be cut into "
            f"virtual_shards={virtual_shards} equal shards",
            " or ".join(f"--global_batch_size {n}" for n in (below, below + virtual_shards) if n),
        )
    return global_batch_size // virtual_shards


def fingerprint_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 of a data set that lies in CPU memory: types, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def split_at_epochs(start: int, stop: int, size: int) -> Iterator[tuple[int, range]]:
    """The span [start, stop) of an endless row of epochs: each epoch's number, and its places."""
    while start < stop:
        epoch, place = divmod(start, size)
        end = min(stop, (epoch + 1) * size)
        yield epoch, range(place, place + end - start)
        start = end


class GlobalBatchSampler(Sampler[list[Any]]):
    """Yields one list of indices for each virtual shard of this rank, step after step.

    With ``with_epochs`` the lists hold pairs (epoch, index), for what draws at random by both.

    Step `s` takes the samples `[s*G, (s+1)*G)` of an endless row of epochs, each a permutation of
    its own; a batch that an epoch does not fill goes on in the next, so every epoch visits every
    sample once. A batch is cut into ``virtual_shards`` runs of consecutive samples, and the world
    size decides only which rank takes which of them: nothing is padded.

    Holds no position that moves: worker processes iterate ahead of the training, so the loop
    counts its steps and calls ``seek``. Has no ``set_epoch``: Fabric would call it with a count
    that starts at 0 after every restart.
    """

    def __init__(
        self,
        *,
        size: int,
        global_batch_size: int,
        virtual_shards: int,
        rank: int,
        world_size: int,
        seed: int,
        with_epochs: bool = False,
    ) -> None:
        if global_batch_size > size:
            raise InputError(
                f"global_batch_size={global_batch_size} is more than the {size} training samples",
                f"--global_batch_size {size - size % virtual_shards} or less",
            )
        self.virtual_shards = virtual_shards
        self.batches_per_epoch = Fraction(size, global_batch_size)
        self.shards = plan_rank_shards(virtual_shards, rank, world_size)
        self._shard_size = plan_shard_size(global_batch_size, virtual_shards)
        self._size = size
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._with_epochs = with_epochs
        self._steps = range(0)
        self._origin = 0

    def seek(self, *, first_step: int, stop_step: int, first_sample: int | None = None) -> None:
        """Makes the next iteration cover these steps; takes no longer for a late one.

        ``first_sample`` is where the first of them begins, counted over all epochs: given where
        earlier steps were of another global batch size.
        """
        self._steps = range(first_step, stop_step)
        by_steps = first_step * self._global_batch_size
        self._origin = 0 if first_sample is None else first_sample - by_steps

    def __len__(self) -> int:
        return len(self._steps) * len(self.shards)

    def __iter__(self) -> Iterator[list[Any]]:
        for step in self._steps:
            for shard in self.shards:
                visits = self.read_visits(step, shard)
                yield visits if self._with_epochs else [sample for _, sample in visits]

    def read_visits(self, step: int, shard: int) -> list[tuple[int, int]]:
        """The (epoch, sample) pairs of one virtual shard, at whichever rank it is."""
        start = self._origin + step * self._global_batch_size + shard * self._shard_size
        visits: list[tuple[int, int]] = []
        for epoch, span in split_at_epochs(start, start + self._shard_size, self._size):
            places = np.arange(span.start, span.stop, dtype=np.uint64)
            samples = KeyedPermutation(self._size, self._seed, epoch).take(places)
            visits += [(epoch, sample) for sample in samples.tolist()]
        return visits

    def read_shard(self, step: int, shard: int) -> list[int]:
        """The samples alone of one virtual shard."""
        return [sample for _, sample in self.read_visits(step, shard)]


class ShardSampler(Sampler[list[int]]):
    """Yields batches of this rank's share of all samples, each sample on exactly one rank.

    Shares may differ by one sample, so nothing that all ranks must do together belongs into a loop
    over it.
    """

    def __init__(self, *, size: int, batch_size: int, rank: int, world_size: int) -> None:
        self._indices = range(rank, size, world_size)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._indices) // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self._indices), self._batch_size):
            yield list(self._indices[start : start + self._batch_size])
