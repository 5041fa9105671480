"""Random number generators: seeds derived from a place in the training, never carried on."""

from __future__ import annotations

import random

import numpy as np
import torch


def derive_seed(*place: int) -> int:
    """A 32-bit seed for a place such as (seed, step, rank).

    Hashed and not added: sums collide, and torch's CPU generator ignores all but 32 bits.
    """
    return int(np.random.SeedSequence(place).generate_state(1)[0])


def seed_generators(*place: int) -> None:
    """Seeds every generator of this process for a place such as (seed, step, rank)."""
    seed = derive_seed(*place)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
