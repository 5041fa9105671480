"""How an epoch of a Trainer's loader is cut for the ranks of a world."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from fabric_train.errors import InputError
from fabric_train.trainers.loaders import EpochCut, change_loader, find_order


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
