"""What the processes of a group send each other: tensors from one to another, and a batch that is
gathered on each of them, for losses that compare samples.

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
    own_group = None
    for first in range(0, world_size, local_world_size):
        ranks = range(first, first + local_world_size)
        # Each rank makes all groups: new_group waits for ranks outside of the group too.
        group = dist.new_group(list(ranks))
        own_group = group if rank in ranks else own_group
    return own_group


def exchange(
    sent: Sequence[tuple[Tensor, int]],
    received: Sequence[tuple[Tensor, int]],
    group: dist.ProcessGroup | None,
) -> list[dist.Work]:
    """Sends tensors to ranks of the group and receives from them; does not block."""

    def name(rank: int) -> int:
        return dist.get_global_rank(group, rank) if group is not None else rank

    operations = [dist.P2POp(dist.isend, each, name(rank), group) for each, rank in sent]
    operations += [dist.P2POp(dist.irecv, each, name(rank), group) for each, rank in received]
    return dist.batch_isend_irecv(operations)


def gather_batch(
    part: Tensor, group: dist.ProcessGroup | None, rows: Sequence[int] | None = None
) -> Tensor:
    """The parts of all ranks of ``group``, one after the other along dimension 0, on each of them.

    The parts may differ in their first dimension alone. ``rows``: their lengths, in the order of
    ranks; if None, the ranks exchange them. A gradient that flows back is the sum of all ranks'
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
    """The length of each rank's part; blocks until the device has sent it."""
    own_rows = torch.tensor([len(part)], device=part.device)
    sizes = [torch.empty_like(own_rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, own_rows, group=group)
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
    part = part.detach().contiguous()
    if len(set(rows)) == 1:
        whole = part.new_empty(sum(rows), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part, group=group)
        return whole
    # Collectives take parts of one size; the longest decides.
    padded = part.new_zeros(max(rows), *part.shape[1:])
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([each[:count] for each, count in zip(parts, rows, strict=True)])


def _sum_own(gradient: Tensor, group: dist.ProcessGroup, rows: Sequence[int]) -> Tensor:
    # Each rank is sent its own rows alone: over gloo a reduce_scatter is a whole all-reduce.
    own_rows = rows[dist.get_rank(group)]
    parts = gradient.new_empty(len(rows) * own_rows, *gradient.shape[1:])
    dist.all_to_all_single(
        parts, gradient.contiguous(), [own_rows] * len(rows), list(rows), group=group
    )
    # Added up in 32 bits: a sum of halves would depend on the number of processes.
    wide = torch.float32 if gradient.itemsize < 4 else gradient.dtype
    return (
        parts.view(len(rows), own_rows, *gradient.shape[1:]).sum(0, dtype=wide).to(gradient.dtype)
    )
