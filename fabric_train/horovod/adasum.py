"""Adasum: adds gradients so that what they agree on is counted once.

S. Maleki et al. 2020, "Scaling Distributed Training with Adaptive Summation". Two vectors a and b
become ``(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b``: their sum if they are orthogonal, their mean
if they are equal. More than two are combined in a tree of pairs, which is complete for powers of
two only. A rank sends each vector log2(W) times, and needs memory for one more copy of it.

    dist.init_process_group("gloo")
    adasum([parameter.grad for parameter in model.parameters()])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fabric_train.communication.exchange import exchange
from fabric_train.errors import InputError


def combine(first: Tensor, second: Tensor) -> Tensor:
    """The adaptive sum of two vectors of one shape; products are added up in float64."""
    a, b = first.double().flatten(), second.double().flatten()
    dot, a_square, b_square = torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)
    # A vector of zeros has no direction, and nothing to share with the other.
    a_part = torch.where(a_square > 0, 1 - dot / (2 * a_square), 1.0)
    b_part = torch.where(b_square > 0, 1 - dot / (2 * b_square), 1.0)
    return (a_part * a + b_part * b).view_as(first).to(first.dtype)


def check_power_of_two(world_size: int) -> None:
    """Raises InputError unless pairs of pairs make up the whole world."""
    if world_size & (world_size - 1):
        raise InputError(
            f"Adasum combines ranks in pairs of pairs, and {world_size} is not a power of two",
            f"start {1 << (world_size.bit_length() - 1)} processes, or use op=Average",
        )


def adasum(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replaces each tensor by the adaptive sum over all ranks of the group; blocks.

    All ranks must call it, and end with the same bits. Raises InputError if the number of ranks is
    not a power of two.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    check_power_of_two(world_size)
    distance = 1
    while distance < world_size:
        peer = rank ^ distance
        sent = [tensor.contiguous() for tensor in tensors]
        received = [torch.empty_like(tensor) for tensor in sent]
        for work in exchange(
            [(tensor, peer) for tensor in sent], [(tensor, peer) for tensor in received], group
        ):
            work.wait()
        for mine, theirs in zip(tensors, received, strict=True):
            # In the same order on both ranks: the sum of floats depends on it.
            pair = (mine, theirs) if rank < peer else (theirs, mine)
            mine.copy_(combine(*pair))
        distance *= 2
