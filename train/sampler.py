"""Which samples each rank takes, as a function of seed, epoch and batch alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from train.errors import InputError


def plan_rank_batch_size(global_batch_size: int, world_size: int) -> int:
    """Samples of one rank per step. Raises InputError where the ranks' shares would differ."""
    if global_batch_size % world_size:
        below = global_batch_size - global_batch_size % world_size
        raise InputError(
            f"global_batch_size={global_batch_size} cannot be shared equally by "
            f"{world_size} processes",
            " or ".join(f"--global_batch_size {n}" for n in (below, below + world_size) if n),
        )
    return global_batch_size // world_size


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields this rank's indices of every global batch from ``seek``'s position to the epoch's end.

    The global batch `b` of epoch `e` holds the same samples at every world size, which torch's
    DistributedSampler cannot say: it pads the tail by an amount that depends on the world. Samples
    that fill no whole batch are left out; the shuffle makes them others in each epoch.

    Has no ``set_epoch``: Fabric would call it with a count that starts at 0 after every restart.
    """

    def __init__(
        self, *, size: int, global_batch_size: int, rank: int, world_size: int, seed: int
    ) -> None:
        if global_batch_size > size:
            raise InputError(
                f"global_batch_size={global_batch_size} is more than the {size} training samples",
                f"--global_batch_size {size - size % world_size} or less",
            )
        self.batches_per_epoch = size // global_batch_size
        self._size = size
        self._global_batch_size = global_batch_size
        self._rank_batch_size = plan_rank_batch_size(global_batch_size, world_size)
        self._rank = rank
        self._seed = seed
        self._epoch = 0
        self._first_batch = 0

    def seek(self, *, epoch: int, batch: int) -> None:
        """Makes the next iteration start at ``batch`` of ``epoch``, both 0-based."""
        self._epoch = epoch
        self._first_batch = batch

    def __len__(self) -> int:
        return self.batches_per_epoch - self._first_batch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng((self._seed, self._epoch)).permutation(self._size)
        for batch in range(self._first_batch, self.batches_per_epoch):
            start = batch * self._global_batch_size + self._rank * self._rank_batch_size
            yield order[start : start + self._rank_batch_size].tolist()


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
