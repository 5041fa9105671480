"""Data that is read in its own order: any world and any number of worker processes."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fabric_train.errors import InputError
from fabric_train.sampling.stream import StreamShards


class Numbers:
    """Counts up to its size; keeps where it was entered and how much was read."""

    fingerprint = "numbers"

    def __init__(self, size: int) -> None:
        self.size = size
        self.entered: list[int] = []
        self.read = 0

    def __len__(self) -> int:
        return self.size

    def read_from(self, position):
        self.entered.append(position)
        for number in range(position, self.size):
            self.read += 1
            yield number


def build(source: Numbers, *, batch=12, shards=6, rank=0, world=1) -> StreamShards:
    return StreamShards(
        source, global_batch_size=batch, virtual_shards=shards, rank=rank, world_size=world
    )


def read_step(source: Numbers, step: int, *, world: int = 1, **shape: int) -> list[int]:
    """The samples of one step, the ranks' parts one after the other."""
    samples: list[int] = []
    for rank in range(world):
        stream = build(source, rank=rank, world=world, **shape)
        stream.seek(first_step=step, stop_step=step + 1)
        samples += chain(*(batch.tolist() for batch in stream))
    return samples


@given(
    size=st.integers(1, 40),
    shards=st.integers(1, 6),
    per_shard=st.integers(1, 4),
    step=st.integers(0, 20),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_step_takes_the_samples_after_the_last_in_any_world(size, shards, per_shard, step, data):
    world, batch = data.draw(st.integers(1, shards)), shards * per_shard
    expected = [place % size for place in range(step * batch, (step + 1) * batch)]
    assert read_step(Numbers(size), step, world=world, batch=batch, shards=shards) == expected


def test_a_late_step_is_entered_by_seek_and_nothing_before_it_is_read():
    source = Numbers(10**9)
    assert read_step(source, 10**6) == list(range(12 * 10**6, 12 * 10**6 + 12))
    assert (source.entered, source.read) == ([12 * 10**6], 12)


def test_a_rank_that_reads_on_enters_the_source_once():
    source = Numbers(1000)
    stream = build(source)
    stream.seek(first_step=0, stop_step=3)
    assert len(list(stream)) == 18
    assert source.entered == [0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_worker_processes_give_the_same_shards_in_the_same_order(workers):
    stream = build(Numbers(50), rank=1, world=2)
    stream.seek(first_step=2, stop_step=7)
    alone = [batch.tolist() for batch in DataLoader(stream, batch_size=None)]
    helped = DataLoader(stream, batch_size=None, num_workers=workers)
    assert [batch.tolist() for batch in helped] == alone
    assert len(alone) == 5 * 3


def test_more_processes_than_shards_are_refused():
    with pytest.raises(InputError, match="7 processes"):
        build(Numbers(50), world=7)


def test_worker_processes_that_stay_go_on_where_they_are_told():
    stream = build(Numbers(36), batch=6, shards=2)
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    found = []
    for first in (0, 3):
        stream.seek(first_step=first, stop_step=first + 2)
        found.append([number for batch in loader for number in batch.tolist()])
    assert found == [list(range(12)), list(range(18, 30))]
