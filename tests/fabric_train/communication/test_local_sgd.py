"""Local SGD in a plain loop of torch, against the published rule written in numpy."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fabric_train.communication.local_sgd import Averaging
from tests.fabric_train.communication.small_quadratic import SIZE, Weights, draw, walk
from tests.fabric_train.forked import run_forked

LR, MOMENTUM, STEPS = 0.1, 0.9, 11


def train(every: int, after: int, shares: list[float] | None) -> list[np.ndarray]:
    """The weights of one rank after each step: SGD with momentum, and Averaging around it."""
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    share = shares[dist.get_rank()] if shares else None
    meeting = Averaging(model, every=every, after=after, share=share)
    return walk(model, optimizer, meeting, STEPS, share)


def follow_rule(ranks: int, every: int, after: int, shares: list[float]) -> np.ndarray:
    """[ranks, steps, SIZE], by Lin et al. 2018: a mean of gradients first, of weights later."""
    weights, velocity = np.ones((ranks, SIZE)), np.zeros((ranks, SIZE))
    path = []
    for number in range(STEPS):
        gradients = np.stack([draw(rank).gradient(weights[rank]) for rank in range(ranks)])
        if number < after:
            gradients[:] = np.average(gradients, axis=0, weights=shares)
        velocity = MOMENTUM * velocity + gradients
        weights = weights - LR * velocity
        if number >= after and (number - after) % every == every - 1:
            weights[:] = np.average(weights, axis=0, weights=shares)
        path.append(weights)
    return np.stack(path, axis=1)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("every", "after"), [(1, 0), (3, 0), (3, 4), (20, 0), (2, 20)])
def test_each_ranks_weights_follow_the_published_rule(ranks, every, after):
    expected = follow_rule(ranks, every, after, [1 / ranks] * ranks)
    weights = np.stack(run_forked(train, ranks, every, after, None))
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-13)


def test_ranks_with_more_samples_weigh_more():
    shares = [0.5, 0.25, 0.25]
    weights = np.stack(run_forked(train, 3, 3, 2, shares))
    np.testing.assert_allclose(weights, follow_rule(3, 3, 2, shares), rtol=1e-12, atol=1e-13)


def test_a_rank_alone_only_trains():
    model = Weights()
    assert Averaging(model, every=1).after_step(0)
    assert torch.equal(model.weights, torch.ones_like(model.weights))


def test_the_ranks_cannot_meet_less_than_once():
    with pytest.raises(ValueError, match="every=0"):
        Averaging(Weights(), every=0)
