"""A shuffle that is computed by index, so that no list of all indices is held in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
"""Four are enough in theory; more make up for the simple round function."""


class KeyedPermutation:
    """A permutation of ``range(size)`` that follows from a key such as (seed, epoch).

    A balanced Feistel network over the next power of four, with cycle walking back into the range
    (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). Memory does not depend on
    ``size``, which is at most 2**62.
    """

    def __init__(self, size: int, *key: int) -> None:
        self._size = np.uint64(size)
        half_bits = max(1, -(-(size - 1).bit_length() // 2))
        self._half_bits = np.uint64(half_bits)
        self._mask = np.uint64((1 << half_bits) - 1)
        self._keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)

    def take(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The permuted values at these positions, each in [0, size); any shape."""
        images = self._encrypt(positions.astype(np.uint64))
        # The network covers less than four times the range, so few values walk, and only briefly.
        while (outside := images >= self._size).any():
            images[outside] = self._encrypt(images[outside])
        return images

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit over all others: the finalizer of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
