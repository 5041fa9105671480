from __future__ import annotations

import random

import numpy as np
import torch

from fabric_train.randomness import (
    derive_seed,
    seed_generators,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_every_place_has_a_seed_of_its_own():
    places = [(seed, epoch, rank) for seed in range(5) for epoch in range(5) for rank in range(5)]
    assert len({derive_seed(*place) for place in places}) == len(places)


def test_seeds_stay_within_the_32_bits_that_torch_uses():
    assert all(0 <= derive_seed(2**32 - 1, n) < 2**32 for n in range(100))


def test_torch_draws_what_its_own_manual_seed_gives():
    seed_generators(4, 2)
    drawn = torch.rand(3)
    torch.manual_seed(derive_seed(4, 2))
    assert torch.equal(torch.rand(3), drawn)


def test_ranks_draw_different_numbers_and_repeat_their_own():
    drawn = []
    for rank in (0, 1, 0):
        seed_generators(0, 0, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])
