from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.errors import InputError
from fabric_train.permutation import KeyedPermutation
from fabric_train.sampler import (
    GlobalBatchSampler,
    ShardSampler,
    fingerprint_tensors,
    plan_rank_shards,
    plan_shard_size,
    plan_virtual_shards,
)


def build(
    *, size: int = 1440, batch: int = 96, shards: int = 16, rank: int = 0, world: int = 1, seed=0
) -> GlobalBatchSampler:
    return GlobalBatchSampler(
        size=size,
        global_batch_size=batch,
        virtual_shards=shards,
        rank=rank,
        world_size=world,
        seed=seed,
    )


def read_step(step: int, *, world: int = 1, **options: int) -> list[int]:
    """The samples of one step, the ranks' parts one after the other."""
    samples: list[int] = []
    for rank in range(world):
        sampler = build(rank=rank, world=world, **options)
        sampler.seek(first_step=step, stop_step=step + 1)
        samples += chain(*sampler)
    return samples


@st.composite
def shapes(draw) -> dict[str, int]:
    shards = draw(st.integers(1, 9))
    batch = shards * draw(st.integers(1, 5))
    return {"shards": shards, "batch": batch, "size": draw(st.integers(batch, 4 * batch + 7))}


@given(shape=shapes(), seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=60)
def test_any_schedule_of_world_sizes_takes_the_same_samples_in_the_same_order(shape, seed, data):
    for step in range(6):
        world = data.draw(st.integers(1, shape["shards"]))
        assert read_step(step, world=world, seed=seed, **shape) == read_step(
            step, seed=seed, **shape
        )


@given(shape=shapes(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_every_epoch_visits_every_sample_once_also_where_batches_cross_its_end(shape, seed):
    size, steps = shape["size"], -(-3 * shape["size"] // shape["batch"])
    visited = list(chain(*(read_step(step, seed=seed, **shape) for step in range(steps))))
    for epoch in range(3):
        assert sorted(visited[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 10**6))
@settings(max_examples=60)
def test_the_order_of_an_epoch_is_a_permutation(size, seed, epoch):
    order = KeyedPermutation(size, seed, epoch).take(np.arange(size, dtype=np.uint64))
    assert sorted(order.tolist()) == list(range(size))


def test_places_and_neighbours_are_spread_evenly_by_the_permutation():
    places = np.arange(64, dtype=np.uint64)
    firsts = Counter(int(KeyedPermutation(10, key).take(places[:1])[0]) for key in range(10_000))
    # Binomial, standard deviation 30: five of them.
    assert all(850 < firsts[value] < 1150 for value in range(10))
    order = KeyedPermutation(64, 1).take(places).astype(int)
    assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 12


def test_a_data_set_that_no_index_list_could_hold_is_read_at_once_at_any_step():
    size = 10**15
    samples = read_step(10**12, size=size)
    assert len(set(samples)) == 96
    assert all(0 <= sample < size for sample in samples)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [read_step(15 * epoch, seed=seed) for epoch in (0, 1) for seed in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_loader_processes_that_read_ahead_do_not_move_the_position():
    dataset = TensorDataset(torch.arange(1440))
    sampler = build()
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=2)
    for first_step in (0, 5, 5):  # left after one shard, when others have long been read
        sampler.seek(first_step=first_step, stop_step=10)
        (shard,) = next(iter(loader))
        assert shard.tolist() == read_step(first_step)[:6]


@pytest.mark.parametrize("world_size", range(1, 17))
def test_the_default_batch_is_shared_whole_by_any_number_of_processes_up_to_16(world_size):
    for exact in (True, False):
        count = plan_virtual_shards(
            None, global_batch_size=96, largest_world=world_size, exact=exact
        )
        shares = [plan_rank_shards(count, rank, world_size) for rank in range(world_size)]
        assert list(chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("given", "largest_world", "exact", "count"),
    [
        (None, 1, False, 1),
        (None, 4, False, 4),
        (None, 5, False, 6),  # the next that the batch can be cut into
        (32, 4, False, 32),
        (None, 1, True, 16),
        (None, 4, True, 16),
        (8, 4, True, 8),
    ],
)
def test_only_exact_has_more_shards_than_processes_by_itself(given, largest_world, exact, count):
    assert count == plan_virtual_shards(
        given, global_batch_size=96, largest_world=largest_world, exact=exact
    )


def test_more_processes_than_virtual_shards_are_refused_with_the_fix():
    with pytest.raises(InputError, match=r"(?s)17 processes.*virtual_shards=16.*_shards 17"):
        plan_rank_shards(16, 0, 17)


def test_a_batch_that_cannot_be_cut_is_refused_with_the_nearest_that_can():
    with pytest.raises(InputError, match=r"(?s)100.*=16.*96 or --global_batch_size 112"):
        plan_shard_size(100, 16)


def test_a_batch_beyond_the_training_set_is_refused():
    with pytest.raises(InputError, match="more than the 1440 training samples"):
        build(batch=1600)


def test_a_changed_data_set_has_another_fingerprint():
    images, labels = torch.zeros(4, 2), torch.arange(4)
    changed = [
        (images, labels),
        (images, labels.flip(0)),
        (images.view(2, 4), labels),
        (images.double(), labels),
    ]
    assert len({fingerprint_tensors(tensors) for tensors in changed}) == 4
    assert fingerprint_tensors((images.clone(), labels)) == fingerprint_tensors(changed[0])


@given(size=st.integers(0, 60), batch_size=st.integers(1, 20), world_size=st.integers(1, 9))
def test_a_test_set_is_shared_without_gap_or_duplicate(size, batch_size, world_size):
    shards = [
        ShardSampler(size=size, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert sorted(chain(*chain(*shards))) == list(range(size))
    assert all(len(list(shard)) == len(shard) for shard in shards)


def test_a_larger_batch_begins_where_the_smaller_ones_have_ended():
    smaller, larger = build(batch=96), build(batch=192)
    smaller.seek(first_step=5, stop_step=9)
    larger.seek(first_step=5, stop_step=7, first_sample=5 * 96)
    assert list(chain(*smaller)) == list(chain(*larger))
