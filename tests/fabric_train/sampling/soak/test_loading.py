"""Any data set in a loop of one's own: each sample once in an epoch, in any world."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fabric_train import share_loader
from tests.fabric_train.forked import run_forked
from tests.fabric_train.sampling.test_loading import BATCH, SIZE, Indexed, Sample


class Listed(IterableDataset[Sample]):
    """The same in an order that follows from the epoch."""

    epoch = 0

    def __len__(self) -> int:
        return SIZE

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[int]:
        return np.random.default_rng(self.epoch).permutation(SIZE).tolist()

    def __iter__(self) -> Iterator[Sample]:
        return ((index, float(np.random.random())) for index in self.order())


class Sought(Listed):
    """The same with a seek."""

    fingerprint = "sought"

    def read_from(self, position: int) -> Iterator[Sample]:
        return ((index, float(np.random.random())) for index in self.order()[position:])


KINDS: dict[str, Any] = {
    "map": lambda: {"dataset": Indexed(), "shuffle": True},
    "sampler": lambda: {
        "dataset": (data := Indexed()),
        "sampler": DistributedSampler(data, num_replicas=1, rank=0),
    },
    "iterable": lambda: {"dataset": Listed()},
    "source": lambda: {"dataset": Sought()},
}


def read(kind: str, workers: int, first: int = 0) -> list[list[list[Sample]]]:
    """Two epochs of this rank's batches, the first from ``first`` on."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    epoch = 0
    loader = share_loader(
        DataLoader(**KINDS[kind](), batch_size=BATCH // world_size, num_workers=workers),
        rank=rank,
        world_size=world_size,
        seed=5,
        place=lambda: (epoch, 0 if epoch else first),
    )
    epochs = []
    while epoch < 2:
        batches = [zip(*(part.tolist() for part in batch), strict=True) for batch in loader]
        epochs.append([list(batch) for batch in batches])
        epoch += 1
    return epochs


def join(ranks: list[list[list[list[Sample]]]]) -> list[list[set[int]]]:
    """The samples of each global batch in each epoch."""
    return [
        [{sample for share in shares for sample, _ in share} for shares in zip(*epoch, strict=True)]
        for epoch in zip(*ranks, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 0) for kind in KINDS),
        *((kind, 2) for kind in ("map", "sampler", "source")),
        ("iterable", 2),
    ],
)
def test_each_sample_is_read_once_in_an_epoch_in_any_world_and_goes_on_after_a_stop(kind, workers):
    alone = join(run_forked(read, 1, kind, workers))
    for epoch in alone:
        assert set().union(*epoch) == set(range(SIZE))
        assert sum(len(batch) for batch in epoch) == SIZE
    assert alone[0] != alone[1], "each epoch has an order of its own"
    for world_size in (2, 4):
        shares = run_forked(read, world_size, kind, workers)
        assert join(shares) == alone
        later = run_forked(read, world_size, kind, workers, 2)
        # With its random numbers: they follow from the batch and the rank.
        assert later == [[share[0][2:], share[1]] for share in shares]
        drawn = [number for share in shares for batch in share[0] for _, number in batch]
        assert len(set(drawn)) == SIZE, "no two processes draw the same"
