"""DiLoCo in a plain loop of torch, against algorithm 1 of the paper written in numpy."""

import numpy as np
import pytest
import torch

from fabric_train.communication.local_sgd import OuterSteps
from tests.fabric_train.communication.small_quadratic import SIZE, Weights, draw, walk
from tests.fabric_train.forked import run_forked

LR, STEPS = 0.05, 13
BETAS, EPSILON, DECAY = (0.9, 0.99), 1e-8, 0.01


def train(every: int, after: int, lr: float, momentum: float) -> list[np.ndarray]:
    """The weights of one rank after each step; AdamW inside, as in the paper."""
    model = Weights()
    inner = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, eps=EPSILON, weight_decay=DECAY
    )
    meeting = OuterSteps(model, every=every, after=after, lr=lr, momentum=momentum)
    return walk(model, inner, meeting, STEPS)


def follow_rule(ranks: int, every: int, after: int, lr: float, momentum: float) -> np.ndarray:
    """[ranks, steps, SIZE]: inner AdamW (Loshchilov and Hutter 2019), outer Nesterov."""
    weights = np.ones((ranks, SIZE))
    first, second = np.zeros((ranks, SIZE)), np.zeros((ranks, SIZE))
    outer, velocity = np.ones(SIZE), np.zeros(SIZE)
    path = []
    for number in range(STEPS):
        gradients = np.stack([draw(rank).gradient(weights[rank]) for rank in range(ranks)])
        if number < after:
            gradients[:] = gradients.mean(axis=0)
        first = BETAS[0] * first + (1 - BETAS[0]) * gradients
        second = BETAS[1] * second + (1 - BETAS[1]) * gradients**2
        unbiased = first / (1 - BETAS[0] ** (number + 1))
        scale = np.sqrt(second / (1 - BETAS[1] ** (number + 1))) + EPSILON
        weights = weights - LR * DECAY * weights - LR * unbiased / scale
        if number < after:
            outer = weights[0]
        elif (number - after) % every == every - 1:
            moved = (outer - weights).mean(axis=0)
            velocity = momentum * velocity + moved
            outer = outer - lr * (moved + momentum * velocity)
            weights = np.tile(outer, (ranks, 1))
        path.append(weights)
    return np.stack(path, axis=1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("every", "after"), [(1, 0), (4, 0), (3, 4)])
def test_each_ranks_weights_follow_the_published_rule(ranks, every, after):
    options = (every, after, 0.7, 0.9)
    weights = np.stack(run_forked(train, ranks, *options))
    np.testing.assert_allclose(weights, follow_rule(ranks, *options), rtol=1e-10, atol=1e-12)
