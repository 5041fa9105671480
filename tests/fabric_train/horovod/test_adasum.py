"""Adasum, against its formula written down once more in numpy."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fabric_train.errors import InputError
from fabric_train.horovod.adasum import adasum, check_power_of_two, combine
from tests.fabric_train.forked import run_forked


def pair_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Maleki et al. 2020, section 3."""
    dot = float((a * b).sum())
    return (1 - dot / (2 * float((a * a).sum()))) * a + (1 - dot / (2 * float((b * b).sum()))) * b


def tree_sum(vectors: list[np.ndarray]) -> np.ndarray:
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    return pair_sum(tree_sum(vectors[:half]), tree_sum(vectors[half:]))


def test_equal_vectors_give_their_mean_and_orthogonal_ones_their_sum():
    x, y = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 5.0])
    assert combine(x, x).tolist() == [3.0, 0.0]
    assert combine(x, y).tolist() == [3.0, 5.0]


def test_a_vector_of_zeros_adds_nothing():
    assert combine(torch.zeros(2), torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert combine(torch.zeros(2), torch.zeros(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("world", [2, 4])
def test_each_tensor_becomes_the_tree_of_pairs_on_all_ranks(world):
    shapes = [(7,), (3, 5)]

    def reduce() -> list[np.ndarray]:
        mine = [torch.tensor(vector) for vector in vectors[dist.get_rank()]]
        adasum(mine)
        return [tensor.numpy() for tensor in mine]

    random = np.random.default_rng(0)
    vectors = [[random.normal(size=s).astype(np.float32) for s in shapes] for _ in range(world)]
    results = run_forked(reduce, world)
    for number in range(len(shapes)):
        expected = tree_sum([each[number].astype(np.float64) for each in vectors])
        np.testing.assert_allclose(results[0][number], expected, rtol=1e-6, atol=1e-6)
        for other in results[1:]:
            assert np.array_equal(results[0][number], other[number])


def test_three_ranks_are_refused_as_by_horovod():
    with pytest.raises(InputError, match=r"(?s)3 is not a power of two.*start 2 processes"):
        check_power_of_two(3)
