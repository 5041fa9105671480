from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.config import TrainConfig
from train.errors import InputError
from train.sampler import GlobalBatchSampler, ShardSampler, plan_rank_batch_size


def batches(*, world_size: int, epoch: int = 0, first: int = 0, seed: int = 0, size: int = 1440):
    """The global batches of an epoch, each as the ranks' parts one after the other."""
    samplers = [
        GlobalBatchSampler(
            size=size, global_batch_size=96, rank=rank, world_size=world_size, seed=seed
        )
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.seek(epoch=epoch, batch=first)
    return [list(chain(*parts)) for parts in zip(*samplers, strict=True)]


@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_a_global_batch_holds_the_same_samples_at_every_world_size(world_size):
    assert batches(world_size=world_size, epoch=3) == batches(world_size=1, epoch=3)


def test_an_epoch_goes_through_every_sample_once():
    assert sorted(chain(*batches(world_size=3))) == list(range(1440))


def test_samples_that_fill_no_whole_batch_are_left_out():
    assert [len(batch) for batch in batches(world_size=2, size=300)] == [96, 96, 96]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [batches(world_size=1, epoch=e, seed=s) for e, s in [(0, 0), (1, 0), (0, 1), (1, 1)]]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_seeking_into_an_epoch_gives_the_rest_of_it():
    assert batches(world_size=2, epoch=2, first=4) == batches(world_size=2, epoch=2)[4:]


def test_fabric_finds_no_epoch_counter_to_overwrite():
    # Fabric calls set_epoch with a count that starts at 0 after every restart.
    assert not hasattr(GlobalBatchSampler, "set_epoch")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_the_default_batch_can_be_shared(world_size):
    share = plan_rank_batch_size(TrainConfig().global_batch_size, world_size)
    assert share * world_size == TrainConfig().global_batch_size


def test_a_batch_that_cannot_be_shared_is_refused_with_the_nearest_that_can():
    with pytest.raises(InputError, match=r"(?s)100.*3 processes.*99 or --global_batch_size 102"):
        plan_rank_batch_size(100, 3)


def test_a_batch_beyond_the_training_set_is_refused():
    with pytest.raises(InputError, match="more than the 1440 training samples"):
        GlobalBatchSampler(size=1440, global_batch_size=1500, rank=0, world_size=1, seed=0)


@given(size=st.integers(0, 60), batch_size=st.integers(1, 20), world_size=st.integers(1, 9))
@settings(deadline=None)
def test_a_test_set_is_shared_without_gap_or_duplicate(size, batch_size, world_size):
    shards = [
        ShardSampler(size=size, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert sorted(chain(*chain(*shards))) == list(range(size))
    assert all(len(list(shard)) == len(shard) for shard in shards)
