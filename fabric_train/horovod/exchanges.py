"""alltoall and reducescatter by Horovod's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fabric_train.horovod import context
from fabric_train.horovod.collectives import Collective, ReduceOp
from fabric_train.horovod.operations import (
    Sum,
    _Waiting,
    allgather,
    plan_reduce,
    refuse_process_set,
    submit,
    through,
)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None) -> Any:
        output, received = alltoall_async(tensor, splits, name).wait()
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return alltoall_async(grads[0], ctx.received).wait()[0], None, None


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: object = None,
) -> _Waiting:
    """Starts ``alltoall``; the handle's result is the received rows and their counts."""
    refuse_process_set(process_set)
    size = context.get().starter.size
    if splits is None:
        if len(tensor) % size:
            raise ValueError(
                f"{len(tensor)} rows cannot be split over {size} ranks evenly: give splits"
            )
        splits = [len(tensor) // size] * size
    counts = torch.as_tensor(splits, dtype=torch.int32).cpu()
    if counts.shape != (size,) or int(counts.sum()) != len(tensor) or int(counts.min()) < 0:
        raise ValueError(
            f"splits {counts.tolist()} are not {size} numbers that add up to {len(tensor)} rows"
        )
    return submit(name, [tensor, counts], Collective(kind="alltoall"), single=False)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: object = None,
) -> Any:
    """Sends the k-th run of rows to rank k; returns the received rows, in the order of ranks.

    ``splits``: how many rows go to each rank; by default equally many. If it is given, the result
    is a pair: the rows, and how many came from each rank.
    """
    refuse_process_set(process_set)
    output, received = through(_Alltoall, tensor, splits, name)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Collective, name: str | None, *tensors: Tensor) -> Any:
        ctx.request = request
        copies = [tensor.detach().clone() for tensor in tensors]
        return tuple(submit(name, copies, request, single=False).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        size = context.get().starter.size
        share = 1.0 if ctx.request.op is Sum else 1.0 / size
        factor = share * ctx.request.prescale * ctx.request.postscale
        return None, None, *(allgather(grad * factor) for grad in grads)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = None,
    op: ReduceOp | None = None,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """This rank's rows of the reduced tensors; the average, unless ``op`` is Sum."""
    refuse_process_set(process_set)
    request = plan_reduce("reducescatter", tensors, None, op, prescale_factor, postscale_factor)
    if request.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise NotImplementedError("reducescatter takes op=Average and op=Sum")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("a tensor without dimensions has no rows to scatter")
    if compression is None:
        return list(through(_Reducescatter, request, name, *tensors))
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    parts = through(_Reducescatter, request, name, *small)
    return [compression.decompress(t, c) for t, c in zip(parts, contexts, strict=True)]


def reducescatter(tensor: Tensor, *rest: Any, **more: Any) -> Tensor:
    """This rank's rows of the reduced tensor; the first ranks may have one row more."""
    return grouped_reducescatter([tensor], *rest, **more)[0]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Waiting:
    """Starts ``reducescatter``; returns the handle."""
    refuse_process_set(process_set)
    request = plan_reduce("reducescatter", [tensor], None, op, prescale_factor, postscale_factor)
    return submit(name, [tensor.detach().clone()], request, single=True)
