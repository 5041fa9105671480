"""Splits what is left of an epoch over however many ranks there are now."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from fabric_train.horovod import context


class ElasticSampler(Sampler[int]):
    """Yields this rank's indices; remembers how many samples of the epoch all ranks have had.

    Put it into the ``TorchState``, call ``record_batch`` after each step and ``set_epoch`` at the
    end of each epoch. Each rank takes every W-th index of those that are left. If they cannot be
    split evenly the first ones are repeated, as in Horovod.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; call it at the end of the last one, so that no sample is seen twice."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that each rank has had ``batch_size`` more samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the place in it."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a saved place, with any number of ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Splits the remaining indices over the present ranks."""
        here = context.get().starter
        self.num_replicas, self.rank = here.size, here.rank
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        missing = self.total_size - len(left)
        padded = left + (left * -(-missing // len(left)) if left else [])[:missing]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
