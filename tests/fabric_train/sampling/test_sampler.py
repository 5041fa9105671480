from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.errors import InputError
from fabric_train.sampling.sampler import (
    GlobalBatchSampler,
    KeyedPermutation,
    ShardSampler,
    check_accumulation,
    fingerprint_tensors,
    plan_rank_shards,
    plan_shard_size,
    plan_virtual_shards,
)


def build(
    *, size=1440, batch=96, shards=16, rank=0, world=1, seed=0, **options: bool
) -> GlobalBatchSampler:
    return GlobalBatchSampler(
        size=size,
        global_batch_size=batch,
        virtual_shards=shards,
        rank=rank,
        world_size=world,
        seed=seed,
        **options,
    )


def read_step(step: int, **options: int) -> list[int]:
    """The samples of one step of a process alone."""
    sampler = build(**options)
    sampler.seek(first_step=step, stop_step=step + 1)
    return list(chain(*sampler))


@st.composite
def shapes(draw) -> dict[str, int]:
    shards = draw(st.integers(1, 9))
    batch = shards * draw(st.integers(1, 5))
    return {"shards": shards, "batch": batch, "size": draw(st.integers(batch, 4 * batch + 7))}


@given(shape=shapes(), seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=60)
def test_any_schedule_of_worlds_takes_every_sample_once_in_each_epoch(shape, seed, data):
    size, batch, shards = shape["size"], shape["batch"], shape["shards"]
    step, steps, visits = 0, -(-3 * size // batch), []
    while step < steps:
        stop = data.draw(st.integers(step + 1, steps))
        world, taken = data.draw(st.integers(1, shards)), []
        for rank in range(world):
            sampler = build(rank=rank, world=world, seed=seed, with_epochs=True, **shape)
            sampler.seek(first_step=step, stop_step=stop)
            taken.append(list(sampler))
            assert len(sampler) == len(taken[-1])
        for number in range(stop - step):
            for own in taken:
                share = len(own) // (stop - step)
                visits += chain(*own[number * share : (number + 1) * share])
        step = stop
    assert [epoch for epoch, _ in visits] == [place // size for place in range(steps * batch)]
    for epoch in range(3):
        samples = [sample for _, sample in visits[epoch * size : (epoch + 1) * size]]
        assert sorted(samples) == list(range(size))
    alone = (read_step(number, seed=seed, **shape) for number in range(steps))
    assert list(chain(*alone)) == [sample for _, sample in visits]


@pytest.mark.parametrize(("batch", "shards"), [(96, 16), (3072, 2)])
def test_shards_that_are_looked_up_together_are_those_that_are_looked_up_alone(batch, shards):
    sampler = build(size=3072, batch=batch, shards=shards, rank=1, world=2, with_epochs=True)
    sampler.seek(first_step=2, stop_step=49)
    own = [(step, shard) for step in range(2, 49) for shard in sampler.shards]
    assert list(sampler) == [sampler.read_visits(*place) for place in own]
    assert sampler.read_shard(*own[0]) == [sample for _, sample in sampler.read_visits(*own[0])]


@pytest.mark.parametrize(
    ("size", "key", "order"),
    [
        (1, (7, 3), [0]),
        (2, (7, 3), [1, 0]),
        (3, (7, 3), [1, 0, 2]),
        (5, (7, 3), [2, 4, 1, 0, 3]),
        (5, (7, 4), [4, 3, 1, 2, 0]),
        (5, (8, 3), [3, 2, 1, 0, 4]),
        (16, (7,), [2, 5, 12]),
        (17, (7,), [2, 15, 3]),
        (10**15, (7, 3), [665762697116558, 411755360626450, 161328630093512]),
        (2**62, (7, 3), [1662600056709308772, 3257270434793644509, 4257766541803774739]),
    ],
)
def test_a_training_that_goes_on_with_another_version_finds_the_same_order(size, key, order):
    places = np.arange(len(order), dtype=np.uint64)
    assert KeyedPermutation(size, *key).permute(places).tolist() == order


def test_places_and_neighbours_are_spread_evenly_by_the_permutation():
    places = np.arange(64, dtype=np.uint64)
    firsts = Counter(int(KeyedPermutation(10, key).permute(places[:1])[0]) for key in range(10_000))
    # Binomial, standard deviation 30: five of them.
    assert all(850 < firsts[value] < 1150 for value in range(10))
    order = KeyedPermutation(64, 1).permute(places).astype(int)
    assert sum(abs(a - b) == 1 for a, b in pairwise(order)) < 12


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
        (None, 49, False, 96),
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


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda: plan_rank_shards(16, 0, 17),
            "17 processes cannot share virtual_shards=16\n"
            "  fix: --virtual_shards 17 for a new training, or fewer processes",
        ),
        (
            lambda: plan_shard_size(100, 16),
            "global_batch_size=100 cannot be cut into virtual_shards=16 equal shards\n"
            "  fix: --global_batch_size 96 or --global_batch_size 112",
        ),
        (
            lambda: plan_virtual_shards(None, global_batch_size=10, largest_world=1, exact=True),
            "global_batch_size=10 cannot be cut into virtual_shards=16 equal shards\n"
            "  fix: --global_batch_size 16",
        ),
        (
            lambda: plan_virtual_shards(None, global_batch_size=96, largest_world=97, exact=False),
            "global_batch_size=96 cannot be cut into virtual_shards=97 equal shards\n"
            "  fix: --global_batch_size 97",
        ),
        (
            lambda: check_accumulation(5, 2, 96),
            "--accumulate 5: 96 samples cannot be cut into 5 equal parts for each of 2 processes\n"
            "  fix: --accumulate 1 or 2 or 3 or 4 or 6 or 8 or 12 or 16 or 24 or 48",
        ),
        (
            lambda: check_accumulation(2, 5, 96),
            "--accumulate 2: 96 samples cannot be cut into 2 equal parts for each of 5 processes\n"
            "  fix: --global_batch_size 10, or a multiple of it",
        ),
        (
            lambda: build(size=50, batch=64),
            "global_batch_size=64 is more than the 50 training samples\n"
            "  fix: --global_batch_size 48 or less",
        ),
        (
            lambda: build(size=5, batch=16),
            "global_batch_size=16 is more than the 5 training samples\n"
            "  fix: more samples, or at most 5 processes and virtual shards",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_with_numbers_that_can(refused, says):
    with pytest.raises(InputError) as error:
        refused()
    assert str(error.value) == says


def test_a_batch_that_can_be_accumulated_is_not_refused():
    check_accumulation(4, 3, 96)


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
    # Checkpoints of earlier versions hold it.
    assert fingerprint_tensors((torch.arange(4), torch.ones(2, 3))) == (
        "542ce53e77af60897d71736d5307f3c00738ac1e41f0068ee1ff581fb06dbf1b"
    )


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
    larger.seek(first_step=5, stop_step=6)
    assert list(chain(*larger)) == read_step(5, batch=192)
