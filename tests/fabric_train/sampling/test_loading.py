"""Any data set, also a Trainer's: each sample once in an epoch, in any world."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from fabric_train import share_loader
from fabric_train.errors import InputError
from fabric_train.sampling.loading import EpochCut, change_loader, find_order

SIZE, BATCH = 48, 8
Sample = tuple[int, float]


class Indexed(Dataset[Sample]):
    """Samples by number, each with a random number as an augmentation would draw."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Sample:
        return index, float(np.random.random())


class Endless(IterableDataset[Sample]):
    """It has no length."""

    def __iter__(self) -> Iterator[Sample]:
        return iter([(0, 0.0)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Endless()}, ["Endless is iterable and has no length", "__len__"]),
        ({"dataset": Indexed(), "batch_size": None}, ["batch_size=None"]),
        ({"dataset": Indexed(), "batch_size": 40, "drop_last": True}, ["48 samples are fewer"]),
        ({"dataset": Indexed(), "global_batch_size": 9}, ["2 processes cannot share"]),
    ],
)
def test_a_loader_that_cannot_be_cut_is_refused(options, words):
    total = options.pop("global_batch_size", None)
    loader: Any = DataLoader(**options)
    with pytest.raises(InputError) as refused:
        share_loader(
            loader, rank=0, world_size=2, seed=0, place=lambda: (0, 0), global_batch_size=total
        )
    for word in words:
        assert word in str(refused.value)


def test_a_tensor_data_set_gives_tensors():
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = share_loader(
        DataLoader(data, batch_size=3), rank=0, world_size=1, seed=0, place=lambda: (0, 1)
    )
    ((batch,),) = loader
    assert batch.tolist() == [3.0, 4.0, 5.0]


def change(loader: DataLoader, cut: EpochCut, epoch: int, first: int) -> DataLoader:
    return change_loader(loader, find_order(loader), cut, lambda: (epoch, first))


def read(world_size: int, first: int = 0, epoch: int = 0, **options) -> list[list[int]]:
    """The global batches of an epoch from ``first`` on, put together from all ranks' shares."""
    options = {"shuffle": True, "drop_last": False, **options}
    shares = []
    for rank in range(world_size):
        cut = EpochCut(
            size=26,
            global_batch_size=8,
            rank=rank,
            world_size=world_size,
            drop_last=options["drop_last"],
            seed=3,
        )
        loader = DataLoader(torch.arange(26), batch_size=1, **options)
        shares.append([batch.tolist() for batch in change(loader, cut, epoch, first)])
    return [list(chain(*batch)) for batch in zip(*shares, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_global_batches_do_not_depend_on_the_world_or_on_where_a_start_begins(world_size):
    alone = read(1)
    assert sorted(chain(*alone)) == list(range(26))
    assert read(1, epoch=1) != alone
    found = read(world_size)
    # Two samples are left for the last batch, so of four ranks two see one again.
    assert found[:3] == alone[:3]
    assert set(found[3]) == set(alone[3])
    assert read(world_size, first=2) == found[2:]
    assert read(world_size, drop_last=True) == alone[:3]


def test_a_sampler_for_one_rank_is_replaced_by_the_order_that_it_shares():
    sampler = DistributedSampler(range(26), num_replicas=2, rank=1, shuffle=False)
    found = read(2, shuffle=None, sampler=sampler)
    assert list(chain(*found)) == list(range(26))


def test_a_world_whose_shares_would_differ_is_refused_with_the_numbers_that_work():
    with pytest.raises(InputError, match=r"5 processes cannot share.* 24 (?s:.*)1, 2, 3, 4, 6, 8"):
        EpochCut(size=99, global_batch_size=24, rank=0, world_size=5, drop_last=False, seed=0)
