"""Who meets whom; averages in the background: what they keep, and that every wait has an end."""

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD

from fabric_train.communication.decentralized import AsyncAverage, find_peer
from tests.fabric_train.communication import quadratic
from tests.fabric_train.communication.quadratic import Quadratic
from tests.fabric_train.forked import ForkedError, run_forked


def train(steps: dict[int, int], pause_s: dict[int, float], interval_s: float = 0.0):
    """Weights, the sum of this rank's own steps, and averages begun; each rank at its own pace."""
    rank = dist.get_rank()
    model, moved = Quadratic(rank), 0.0
    average = AsyncAverage(list(model.parameters()), interval_s=interval_s, timeout_s=20)
    optimizer = SGD(model.parameters(), lr=quadratic.LR)
    for _ in range(steps[rank]):
        optimizer.zero_grad()
        model().backward()
        before = quadratic.flat(model)
        optimizer.step()
        moved = moved + quadratic.flat(model) - before
        average.after_step()
        time.sleep(pause_s.get(rank, 0))
    average.settle()
    return quadratic.flat(model), moved, average.begun


def test_the_mean_of_all_weights_is_that_of_all_steps():
    results = run_forked(train, 2, {0: 100, 1: 100}, {0: 0.005, 1: 0.005})
    moved = np.mean([each[1] for each in results], axis=0)
    mean = np.mean([each[0] for each in results], axis=0)
    np.testing.assert_allclose(mean, quadratic.make_start() + moved, atol=1e-4)
    assert results[0][2] > 1


def test_a_slow_rank_and_one_with_fewer_steps_hold_nobody_up_and_settle():
    began_at = time.monotonic()
    results = run_forked(train, 3, {0: 400, 1: 10, 2: 30}, {1: 0.03, 2: 0.005})
    assert len({begun for _, _, begun in results}) == 1
    mean = np.mean([each[0] for each in results], axis=0)
    moved = np.mean([each[1] for each in results], axis=0)
    np.testing.assert_allclose(mean, quadratic.make_start() + moved, atol=1e-3)
    assert time.monotonic() - began_at < 30


def test_the_next_average_waits_for_the_interval():
    results = run_forked(train, 2, {0: 50, 1: 50}, {}, 3600.0)
    assert [begun for _, _, begun in results] == [0, 0]


def wait_for_a_peer_that(ends):
    """Steps until an error comes; the time since the peer's end."""
    model = Quadratic(dist.get_rank())
    average = AsyncAverage(list(model.parameters()), interval_s=0, timeout_s=3)
    dist.barrier()
    average.after_step()
    if dist.get_rank() == 1:
        ends()
    began_at = time.monotonic()
    try:
        while time.monotonic() - began_at < 30:
            average.after_step()
            time.sleep(0.01)
    except RuntimeError:
        pass
    took_s = time.monotonic() - began_at
    # Not returned, because the peer is not there for the barrier that follows.
    raise ArithmeticError(f"told after {took_s:.1f} s")


@pytest.mark.parametrize(
    ("ends", "within_s"), [(lambda: os._exit(3), 3.5), (lambda: time.sleep(60), 10)]
)
def test_a_peer_that_died_or_hangs_is_told_by_the_next_step(ends, within_s):
    began_at = time.monotonic()
    with pytest.raises(ForkedError) as caught:
        run_forked(wait_for_a_peer_that, 2, ends, limit_s=30)
    assert "ArithmeticError: told after" in str(caught.value)
    assert time.monotonic() - began_at < within_s + 8


def test_settling_with_a_peer_that_hangs_has_an_end():
    def settle():
        average = AsyncAverage([torch.ones(3)], interval_s=0, timeout_s=2)
        if dist.get_rank() == 1:
            time.sleep(60)
        with pytest.raises(RuntimeError):
            average.settle()
        raise ArithmeticError("told")

    with pytest.raises(ForkedError, match="ArithmeticError: told"):
        run_forked(settle, 2, limit_s=30)


@pytest.mark.parametrize("ranks", [2, 4, 8, 10])
def test_shift_one_pairs_all_ranks_with_another_one_each_time(ranks):
    met = {rank: set() for rank in range(ranks)}
    for number in range(ranks):
        for rank in range(ranks):
            peer = find_peer(rank, ranks, number)
            assert peer != rank
            assert find_peer(peer, ranks, number) == rank
            met[rank].add(peer)
    assert all(len(peers) == ranks // 2 for peers in met.values())
