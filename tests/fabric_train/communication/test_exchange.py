"""The batch of a group of processes on each of them, in a plain loop of torch."""

import torch
import torch.distributed as dist

from fabric_train.communication.exchange import gather_batch
from tests.fabric_train.forked import run_forked

ROWS = (3, 1)


def gather_uneven():
    rank = dist.get_rank()
    part = torch.full((ROWS[rank], 2), float(rank), requires_grad=True)
    whole = gather_batch(part, dist.group.WORLD)
    # Each rank weighs the rows otherwise; a rank's gradient is the sum over both.
    weights = (torch.arange(4.0) + 1) * (10**rank)
    (whole * weights[:, None]).sum().backward()
    numbers = gather_batch(torch.full((ROWS[rank],), rank), dist.group.WORLD, ROWS)
    flags = gather_batch(torch.full((ROWS[rank],), rank == 1), dist.group.WORLD, ROWS)
    empty = gather_batch(torch.ones(rank, 2), dist.group.WORLD)
    half = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    gather_batch(half, dist.group.WORLD).sum().backward()
    return {
        "whole": whole.tolist(),
        "gradient": part.grad.tolist(),
        "numbers": numbers.tolist(),
        "flags": flags.tolist(),
        "empty": empty.tolist(),
        "half": (half.grad.item(), half.grad.dtype),
    }


def test_parts_of_different_lengths_come_together_in_the_order_of_ranks():
    for rank, result in enumerate(run_forked(gather_uneven, 2)):
        assert result["whole"] == [[0.0, 0.0]] * 3 + [[1.0, 1.0]]
        assert result["numbers"] == [0, 0, 0, 1]
        assert result["flags"] == [False, False, False, True]
        assert result["empty"] == [[1.0, 1.0]]
        expected = [[11.0 * (row + 1)] * 2 for row in range(4)]
        assert result["gradient"] == (expected[:3] if rank == 0 else expected[3:])
        assert result["half"] == (2.0, torch.bfloat16)
