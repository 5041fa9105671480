"""Any data set, also a Trainer's: each sample once in an epoch, in any world."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from fabric_train import share_loader
from fabric_train.errors import InputError
from fabric_train.sampling.loading import (
    EpochCut,
    Rereading,
    change_loader,
    find_order,
    find_source,
)

SIZE, BATCH = 48, 8
Sample = tuple[int, float]


class Indexed(Dataset[Sample]):
    """Samples by number, each with a random number as an augmentation would draw."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Sample:
        return index, float(np.random.random())


class Drawn(IterableDataset[Sample]):
    """Samples in order, each with a random number; it counts how often it is read."""

    readings = 0

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[Sample]:
        self.readings += 1
        return (
            (n, random.random() + np.random.random() + float(torch.rand(1))) for n in range(SIZE)
        )


class Endless(IterableDataset[Sample]):
    """It has no length."""

    def __iter__(self) -> Iterator[Sample]:
        return iter([(0, 0.0)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Endless()}, ["Endless is iterable and has no length", "__len__"]),
        ({"dataset": Indexed(), "batch_size": None}, ["batch_size=None"]),
        (
            {"dataset": Indexed(), "batch_size": 40, "drop_last": True},
            ["48 samples are fewer", "at most 24"],
        ),
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


def test_an_iterable_data_set_is_read_on_where_it_stands_and_anew_where_it_is_past():
    dataset = Drawn()
    source = Rereading(dataset)
    numbers = [number for number, _ in source.read_from(5)]
    assert (numbers, dataset.readings) == (list(range(5, SIZE)), 1)
    for position, readings in [(0, 2), (1, 2), (4, 2), (2, 3)]:
        assert next(source.read_from(position))[0] == position
        assert dataset.readings == readings
    source.set_epoch(1)
    assert next(source.read_from(3))[0] == 3
    assert dataset.readings == 4


def test_samples_that_are_dropped_change_no_random_number_of_the_batch():
    drawn = []
    for position in (0, 7):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        drawn.append(next(Rereading(Drawn()).read_from(position))[1])
    assert drawn[0] == drawn[1]


def test_only_a_loader_of_batches_that_reads_in_order_has_a_source():
    source: Any = Rereading(Drawn())
    assert find_source(DataLoader(source, batch_size=BATCH)) is source
    assert find_source(DataLoader(source, batch_size=None)) is None
    assert find_source(DataLoader(Drawn(), batch_size=BATCH)) is None
    assert find_source([source]) is None
