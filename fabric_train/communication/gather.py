"""The batch of a group of processes on each of them, for losses that compare its samples.

    node = new_node_group(rank, world_size, local_world_size)
    everything = gather_batch(model(inputs), node)
    loss = contrastive_loss(everything, gather_batch(targets, node))

For contrastive and NCE losses (van den Oord et al. 2018), whose value depends on the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def new_node_group(rank: int, world_size: int, local_world_size: int) -> dist.ProcessGroup | None:
    """The group of this rank's node; None for a process that is alone on its node.

    Blocks; all ranks of the world must call it. Every node has ``local_world_size`` ranks.
    """
    if local_world_size == 1:
        return None
    own = None
    for first in range(0, world_size, local_world_size):
        ranks = range(first, first + local_world_size)
        # Each rank makes all groups: new_group waits for ranks outside of the group too.
        group = dist.new_group(list(ranks))
        own = group if rank in ranks else own
    return own


def gather_batch(
    part: Tensor, group: dist.ProcessGroup | None, rows: Sequence[int] | None = None
) -> Tensor:
    """The parts of all ranks of ``group``, one after the other along dimension 0, on each of them.

    The parts may differ in their first dimension alone; ``rows`` says how long they are, in the
    order of ranks, and is exchanged without it. A gradient that flows back is the sum of all ranks'
    gradients for this rank's part, so every rank must make a backward pass through it. ``group``
    None stands for one rank alone. All ranks of the group must call it.
    """
    if group is None:
        return part
    if rows is None:
        rows = exchange_rows(part, group)
    if part.requires_grad and torch.is_grad_enabled():
        gathered: Tensor = _Gather.apply(part, group, tuple(rows))  # type: ignore[no-untyped-call]
        return gathered
    return _gather(part, group, rows)


def exchange_rows(part: Tensor, group: dist.ProcessGroup) -> list[int]:
    """How long each rank's part is; blocks until the device has sent it."""
    own = torch.tensor([len(part)], device=part.device)
    sizes = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, own, group=group)
    return [int(size) for size in sizes]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup, rows: Sequence[int]) -> Tensor:
        ctx.group, ctx.rows = group, rows
        return _gather(part, group, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _sum_own(gradient, ctx.group, ctx.rows), None, None


def _gather(part: Tensor, group: dist.ProcessGroup, rows: Sequence[int]) -> Tensor:
    # Collectives take parts of one size; the longest decides.
    padded = part.detach().new_zeros(max(rows), *part.shape[1:])
    padded[: len(part)] = part.detach()
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([each[:count] for each, count in zip(parts, rows, strict=True)])


def _sum_own(gradient: Tensor, group: dist.ProcessGroup, rows: Sequence[int]) -> Tensor:
    # Added up in 32 bits: a sum of halves would depend on the number of processes.
    wide = torch.float32 if gradient.itemsize < 4 else gradient.dtype
    parts = gradient.new_zeros(len(rows), max(rows), *gradient.shape[1:], dtype=wide)
    for padded, each in zip(parts, gradient.split(list(rows)), strict=True):
        padded[: len(each)] = each
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, list(parts), group=group)
    return own[: rows[dist.get_rank(group)]].to(gradient.dtype)
