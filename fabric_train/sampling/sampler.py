"""Which samples each rank takes, a function of seed and step; the shuffle, which is computed by
index, so that no list of all indices is held; into how many virtual shards a batch is cut."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from fabric_train.errors import InputError


def plan_rank_shards(virtual_shards: int, rank: int, world_size: int) -> range:
    """The virtual shards of one rank; raises InputError if a rank would have none."""
    if world_size > virtual_shards:
        raise InputError(
            f"{world_size} processes cannot share virtual_shards={virtual_shards}",
            f"--virtual_shards {world_size} for a new training, or fewer processes",
        )
    return range(virtual_shards * rank // world_size, virtual_shards * (rank + 1) // world_size)


BLOCK = 1024
"""How many samples an iteration looks up at once."""
Places = NDArray[np.int64]
EXACT_SHARDS = 16
"""The default for exact results: a fixed number, so that worlds of up to 16 compute alike."""


def plan_virtual_shards(
    given: int | None, *, global_batch_size: int, largest_world: int, exact: bool
) -> int:
    """How many equal parts each global batch is cut into.

    ``given``, else EXACT_SHARDS if ``exact``, else the fewest that ``largest_world`` processes can
    share, because each part costs a forward and a backward pass. Raises InputError if the batch
    cannot be cut into so many.
    """
    if given is None and exact:
        given = EXACT_SHARDS
    if given is None:
        enough = range(largest_world, global_batch_size + 1)
        given = next((n for n in enough if global_batch_size % n == 0), largest_world)
    plan_shard_size(global_batch_size, given)
    return given


def plan_shard_size(global_batch_size: int, virtual_shards: int) -> int:
    """Samples of one virtual shard; raises InputError if the shards would differ in size."""
    if global_batch_size % virtual_shards:
        below = global_batch_size - global_batch_size % virtual_shards
        raise InputError(
            f"global_batch_size={global_batch_size} cannot be cut into "
            f"virtual_shards={virtual_shards} equal shards",
            " or ".join(f"--global_batch_size {n}" for n in (below, below + virtual_shards) if n),
        )
    return global_batch_size // virtual_shards


def check_accumulation(parts: int, replicas: int, global_batch_size: int) -> None:
    """Raises InputError, with numbers that work, if the batch cannot be cut into equal parts."""
    if global_batch_size % (parts * replicas):
        fit = [str(n) for n in range(1, 65) if global_batch_size % (n * replicas) == 0]
        raise InputError(
            f"--accumulate {parts}: {global_batch_size} samples cannot be cut into {parts} equal "
            f"parts for each of {replicas} processes",
            f"--accumulate {' or '.join(fit)}"
            if fit
            else f"--global_batch_size {parts * replicas}, or a multiple of it",
        )


def fingerprint_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 of a data set in CPU memory: types, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class GlobalBatchSampler(Sampler[list[Any]]):
    """Yields one list of indices for each virtual shard of this rank, step after step.

    With ``with_epochs`` the lists hold pairs (epoch, index), for augmentation that depends on both.

    Step `s` takes the samples `[s*G, (s+1)*G)` of an endless row of epochs, each with its own
    permutation; a batch may reach into the next epoch, so every epoch visits every sample once. A
    batch is cut into ``virtual_shards`` runs of consecutive samples; the world size only decides
    which rank takes which run. Nothing is padded.

    Keeps no position, because worker processes iterate ahead of the training: the loop counts its
    steps and calls ``seek``. Has no ``set_epoch``, because Fabric would call it with a count that
    starts at 0 after every restart.
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
            fits = size - size % virtual_shards
            raise InputError(
                f"global_batch_size={global_batch_size} is more than the {size} training samples",
                f"--global_batch_size {fits} or less"
                if fits
                else f"more samples, or at most {size} processes and virtual shards",
            )
        self.virtual_shards = virtual_shards
        self.shards = plan_rank_shards(virtual_shards, rank, world_size)
        self._shard_size = plan_shard_size(global_batch_size, virtual_shards)
        self._size = size
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._with_epochs = with_epochs
        self._steps = range(0)
        self._origin = 0

    def seek(self, *, first_step: int, stop_step: int, first_sample: int | None = None) -> None:
        """Makes the next iteration cover these steps; equally fast for every step.

        ``first_sample`` is where the first of them begins, counted over all epochs; needed if
        earlier steps had another global batch size.
        """
        self._steps = range(first_step, stop_step)
        by_steps = first_step * self._global_batch_size
        self._origin = 0 if first_sample is None else first_sample - by_steps

    def __len__(self) -> int:
        return len(self._steps) * len(self.shards)

    def __iter__(self) -> Iterator[list[Any]]:
        steps, shards = self._steps, self.shards
        at_once = max(1, BLOCK // (len(shards) * self._shard_size))
        for first in range(0, len(steps), at_once):
            # Looking up a few samples costs as much as a thousand: 0.4 ms.
            epochs, samples = self._locate(steps[first : first + at_once], shards)
            for its_epochs, its_samples in zip(epochs.tolist(), samples.tolist(), strict=True):
                if self._with_epochs:
                    yield list(zip(its_epochs, its_samples, strict=True))
                else:
                    yield its_samples

    def read_visits(self, step: int, shard: int) -> list[tuple[int, int]]:
        """The (epoch, sample) pairs of one virtual shard, of any rank."""
        (epochs,), (samples,) = self._locate(range(step, step + 1), range(shard, shard + 1))
        return list(zip(epochs.tolist(), samples.tolist(), strict=True))

    def _locate(self, steps: range, shards: range) -> tuple[Places, Places]:
        """The epochs and the samples, each [steps * shards, samples of a shard]."""
        starts = self._origin + np.array(steps)[:, None] * self._global_batch_size
        starts = (starts + np.array(shards) * self._shard_size).reshape(-1, 1)
        epochs, places = np.divmod(starts + np.arange(self._shard_size), self._size)
        samples = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            at = epochs == epoch
            permutation = KeyedPermutation(self._size, self._seed, epoch)
            samples[at] = permutation.permute(places[at].astype(np.uint64))
        return epochs, samples

    def read_shard(self, step: int, shard: int) -> list[int]:
        """The samples of one virtual shard, of any rank."""
        return [sample for _, sample in self.read_visits(step, shard)]


class ShardSampler(Sampler[list[int]]):
    """Yields batches of this rank's share of all samples; each sample is on exactly one rank.

    Shares may differ by one sample, so a loop over it must not contain collectives.
    """

    def __init__(self, *, size: int, batch_size: int, rank: int, world_size: int) -> None:
        self._indices = range(rank, size, world_size)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._indices) // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self._indices), self._batch_size):
            yield list(self._indices[start : start + self._batch_size])


ROUNDS = 8
"""Four are enough in theory; more make up for the simple round function."""


class KeyedPermutation:
    """A permutation of ``range(size)`` that follows from a key such as (seed, epoch).

    A balanced Feistel network over the next power of four, with cycle walking back into the range
    (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). Memory does not depend on
    ``size``, which is at most 2**62.
    """

    def __init__(self, size: int, *key: int) -> None:
        self._size = np.uint64(size)
        half_bits = max(1, -(-(size - 1).bit_length() // 2))
        self._half_bits = np.uint64(half_bits)
        self._mask = np.uint64((1 << half_bits) - 1)
        self._keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)

    def permute(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The permuted values at these positions, each in [0, size); any shape."""
        images = self._encrypt(positions.astype(np.uint64))
        # The network covers less than four times the range, so few values walk, and only briefly.
        while (outside := images >= self._size).any():
            images[outside] = self._encrypt(images[outside])
        return images

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit over all others: the finalizer of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
