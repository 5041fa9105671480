"""What each of Horovod's collectives does, once all ranks have made the request: all-reduce,
all-gather, broadcast, barrier."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fabric_train.horovod.adasum import adasum


class ReduceOp(enum.IntEnum):
    """How the ranks' values are combined."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, kw_only=True)
class Channel:
    """The groups of all ranks; ``control`` is for small numbers in CPU memory."""

    rank: int = 0
    size: int = 1
    data: dist.ProcessGroup | None = None
    control: dist.ProcessGroup | None = None

    def gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers; all ranks must give equally many."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self.control)
        return [part.tolist() for part in parts]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The part of a request that must be equal on all ranks, besides the shapes."""

    kind: str
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0


_TORCH_OPS = {
    ReduceOp.AVERAGE: dist.ReduceOp.SUM,
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}
_WIDER = {torch.bfloat16: torch.float32, torch.int16: torch.int32, torch.bool: torch.uint8}
"""Types that gloo does not add, with the type to add them in."""


def allreduce(channel: Channel, tensors: Sequence[Tensor], request: Collective) -> Any:
    """Reduces the tensors in place, with one transfer for each type."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        if len(same) == 1 and same[0].is_contiguous():
            _reduce(channel, same[0], request, same)
            continue
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        _reduce(channel, flat, request, list(flat.split([tensor.numel() for tensor in same])))
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(part.view_as(tensor))
    return list(tensors)


def _reduce(channel: Channel, flat: Tensor, request: Collective, parts: list[Tensor]) -> None:
    """Reduces ``flat`` in place; ``parts`` are its tensors, which Adasum takes one by one."""
    _scale(flat, request.prescale)
    if channel.size > 1 and request.op is ReduceOp.ADASUM:
        adasum(parts, channel.data)
    elif channel.size > 1:
        wide = flat.to(_WIDER.get(flat.dtype, flat.dtype)) if flat.device.type == "cpu" else flat
        dist.all_reduce(wide, _TORCH_OPS[request.op], group=channel.data)
        if wide is not flat:
            flat.copy_(wide)
    if request.op is ReduceOp.AVERAGE and not flat.is_floating_point() and not flat.is_complex():
        flat.copy_(torch.div(flat, channel.size, rounding_mode="floor"))
        _scale(flat, request.postscale)
    else:
        average = request.op is ReduceOp.AVERAGE
        _scale(flat, request.postscale / channel.size if average else request.postscale)


def _scale(tensor: Tensor, factor: float) -> None:
    if factor != 1.0:
        tensor.copy_(tensor * factor)


def allgather(channel: Channel, tensors: Sequence[Tensor], request: Collective) -> Any:
    """Concatenates the ranks' tensors by rows; their first dimensions may differ."""
    return [_gather_one(channel, tensor) for tensor in tensors]


def _gather_one(channel: Channel, tensor: Tensor) -> Tensor:
    if channel.size == 1:
        return tensor.clone()
    rows = [numbers[0] for numbers in channel.gather_numbers([tensor.shape[0]])]
    row_bytes = tensor[:1].numel() * tensor.element_size() if len(tensor) else 0
    row_bytes = max(numbers[0] for numbers in channel.gather_numbers([row_bytes]))
    mine = torch.zeros(max(rows) * row_bytes, dtype=torch.uint8, device=tensor.device)
    content = as_bytes(tensor.contiguous())
    mine[: content.numel()] = content
    parts = [torch.empty_like(mine) for _ in rows]
    dist.all_gather(parts, mine, group=channel.data)
    whole = torch.cat([part[: n * row_bytes] for part, n in zip(parts, rows, strict=True)])
    return whole.view(tensor.dtype).view(sum(rows), *tensor.shape[1:])


def as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor as a vector of its bytes, which share its memory."""
    return tensor.reshape(-1).view(torch.uint8)


def broadcast(channel: Channel, tensors: Sequence[Tensor], request: Collective) -> Any:
    """Replaces the tensors by the root's, in place."""
    for tensor in tensors if channel.size > 1 else ():
        whole = tensor.contiguous()
        assert channel.data is not None
        source = dist.get_global_rank(channel.data, request.root)
        dist.broadcast(as_bytes(whole), source, group=channel.data)
        if whole is not tensor:
            tensor.copy_(whole)
    return list(tensors)


def barrier(channel: Channel, tensors: Sequence[Tensor], request: Collective) -> Any:
    """Does nothing: all ranks have made the request by now."""
    return []


PERFORM: dict[str, Callable[[Channel, Sequence[Tensor], Collective], Any]] = {
    act.__name__: act for act in (allreduce, allgather, broadcast, barrier)
}
