"""Collectives by Horovod's names.

Each has a form that waits and one that returns a handle (``_async``); some have forms that write
into their argument (a last ``_``). Ranks match requests by name, and those without a name by their
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fabric_train.communication.adasum import check_power_of_two
from fabric_train.horovod import context
from fabric_train.horovod.collectives import Collective, ReduceOp
from fabric_train.horovod.compression import Compression
from fabric_train.horovod.engine import Handle

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


class _Waiting:
    """A handle, and whether its result is a single tensor."""

    def __init__(self, handle: Handle, single: bool) -> None:
        self.handle, self._single = handle, single

    def wait(self) -> Any:
        result = self.handle.wait()
        return result[0] if self._single else result


def submit(
    name: str | None, tensors: Sequence[Tensor], request: Collective, *, single: bool
) -> _Waiting:
    """Hands a request to the engine, as ``KIND.NAME``; it numbers requests without a name."""
    here = context.get()
    if name is None:
        number = here.names[request.kind] = here.names.get(request.kind, 0) + 1
        name = f"noname.{number}"
    detached = [tensor.detach() for tensor in tensors]
    handle = Handle(f"{request.kind}.{name}", request, detached)
    return _Waiting(here.engine.submit(handle), single)


def through(function: Any, *arguments: Any) -> Any:
    """Applies an autograd function."""
    return function.apply(*arguments)


def synchronize(handle: _Waiting) -> Any:
    """The result of an asynchronous request; blocks. Raises HorovodInternalError if it failed."""
    return handle.wait()


def poll(handle: _Waiting) -> bool:
    """Whether ``synchronize`` would return at once."""
    return handle.handle.is_done()


def join(device: int = -1) -> int:
    """Tells the others that this rank has no more data; blocks until all have said so.

    Until then this rank contributes zeros to their sums and averages, and no rows to what they
    gather, on ``device`` (the current CUDA device by default). Returns the rank that joined last.
    """
    here = context.get()
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    last = here.engine.join(device if device >= 0 else current)
    # The ranks have made different numbers of requests, and count anew from here.
    here.names.clear()
    return last


def barrier(process_set: object = None) -> None:
    """Returns when all ranks have called it."""
    refuse_process_set(process_set)
    submit(None, [], Collective(kind="barrier"), single=False).wait()


def refuse_process_set(process_set: object) -> None:
    """Raises NotImplementedError for a process set other than all ranks."""
    if process_set is not None and process_set is not global_process_set:
        raise NotImplementedError(
            "process sets are not supported: make a group of these ranks with "
            "torch.distributed.new_group, and use torch.distributed's own collectives with it"
        )


class _AllRanks:
    """Horovod's global process set: all ranks."""

    def rank(self) -> int:
        return context.get().starter.rank

    def size(self) -> int:
        return context.get().starter.size


global_process_set = _AllRanks()


def plan_reduce(
    kind: str,
    tensors: Sequence[Tensor],
    average: bool | None,
    op: ReduceOp | None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Collective:
    """The request; raises ValueError, NotImplementedError or InputError if it is impossible."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only op.")
        op = Average if average else Sum
    op = Average if op is None else ReduceOp(op)
    if op is Adasum:
        check_power_of_two(context.get().starter.size)
        if any(not tensor.is_floating_point() for tensor in tensors):
            raise NotImplementedError("Adasum needs floating-point tensors")
    if any(tensor.is_sparse for tensor in tensors):
        raise NotImplementedError("a sparse tensor cannot be reduced: give tensor.to_dense()")
    return Collective(kind=kind, op=op, prescale=prescale_factor, postscale=postscale_factor)


# -- allreduce ---------------------------------------------------------------------------------


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Collective, name: str | None, *tensors: Tensor) -> Any:
        ctx.request = request
        copies = [tensor.detach().clone() for tensor in tensors]
        return tuple(submit(name, copies, request, single=False).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *through(_Allreduce, ctx.request, None, *grads)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> list[Tensor]:
    """New tensors, reduced over all ranks in one transfer; gradients flow through it."""
    refuse_process_set(process_set)
    request = plan_reduce("allreduce", tensors, average, op, prescale_factor, postscale_factor)
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    reduced = through(_Allreduce, request, name, *small)
    return [compression.decompress(t, c) for t, c in zip(reduced, contexts, strict=True)]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Tensor:
    """A new tensor, reduced over all ranks (the average, unless ``op``); gradients flow."""
    scales = prescale_factor, postscale_factor
    return grouped_allreduce([tensor], average, name, compression, op, *scales, process_set)[0]


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
    *,
    single: bool = False,
) -> _Waiting:
    """Starts to reduce tensors in place, in one transfer; returns the handle."""
    refuse_process_set(process_set)
    request = plan_reduce("allreduce", tensors, average, op, prescale_factor, postscale_factor)
    return submit(name, tensors, request, single=single)


def grouped_allreduce_async(tensors: Sequence[Tensor], *rest: Any, **more: Any) -> _Waiting:
    """As ``grouped_allreduce_async_``, into new tensors."""
    return grouped_allreduce_async_([t.detach().clone() for t in tensors], *rest, **more)


def grouped_allreduce_(tensors: Sequence[Tensor], *rest: Any, **more: Any) -> list[Tensor]:
    """Reduces tensors in place, in one transfer."""
    grouped_allreduce_async_(tensors, *rest, **more).wait()
    return list(tensors)


def allreduce_async_(tensor: Tensor, *rest: Any, **more: Any) -> _Waiting:
    """Starts to reduce a tensor in place; returns the handle."""
    return grouped_allreduce_async_([tensor], *rest, single=True, **more)


def allreduce_async(tensor: Tensor, *rest: Any, **more: Any) -> _Waiting:
    """Starts to reduce into a new tensor; returns the handle."""
    return allreduce_async_(tensor.detach().clone(), *rest, **more)


def allreduce_(tensor: Tensor, *rest: Any, **more: Any) -> Tensor:
    """Reduces a tensor in place."""
    allreduce_async_(tensor, *rest, **more).wait()
    return tensor


# -- allgather ---------------------------------------------------------------------------------


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, *tensors: Tensor) -> Any:
        gathered = grouped_allgather_async(tensors, name).wait()
        ctx.rows = [len(tensor) for tensor in tensors]
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # The average, as in Horovod: each rank's loss counts one share of the whole.
        means = grouped_allreduce(grads, op=Average)
        rows = torch.tensor([ctx.rows])
        before = allgather(rows)[: context.get().starter.rank].sum(0).tolist()
        parts = zip(means, before, ctx.rows, strict=True)
        return None, *(mean.narrow(0, start, count) for mean, start, count in parts)


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: object = None,
    *,
    single: bool = False,
) -> _Waiting:
    """Starts to gather each tensor; returns the handle."""
    refuse_process_set(process_set)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("a tensor without dimensions cannot be gathered: give tensor.reshape(1)")
    return submit(name, tensors, Collective(kind="allgather"), single=single)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: object = None
) -> list[Tensor]:
    """Each tensor's rows of all ranks, in the order of ranks; gradients flow through it."""
    refuse_process_set(process_set)
    return list(through(_Allgather, name, *tensors))


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: object = None
) -> _Waiting:
    """Starts to gather the rows of all ranks; returns the handle."""
    return grouped_allgather_async([tensor], name, process_set, single=True)


def allgather(tensor: Tensor, name: str | None = None, process_set: object = None) -> Tensor:
    """The rows of all ranks, in the order of ranks; ranks may have unequal numbers of rows."""
    return grouped_allgather([tensor], name, process_set)[0]


# -- broadcast ---------------------------------------------------------------------------------


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None) -> Any:
        ctx.root_rank = root_rank
        return broadcast_async(tensor, root_rank, name).wait()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        mean = allreduce(grads[0], op=Average)
        is_root = context.get().starter.rank == ctx.root_rank
        return mean if is_root else mean * 0, None, None


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> _Waiting:
    """Starts to replace a tensor by the root's; returns the handle."""
    refuse_process_set(process_set)
    if not 0 <= root_rank < context.get().starter.size:
        raise ValueError(f"root_rank {root_rank} is not one of {context.get().starter.size} ranks")
    return submit(name, [tensor], Collective(kind="broadcast", root=root_rank), single=True)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> _Waiting:
    """Starts to copy the root's tensor into a new one; returns the handle."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> Tensor:
    """Replaces a tensor by the root's."""
    broadcast_async_(tensor, root_rank, name, process_set).wait()
    return tensor


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> Tensor:
    """The root's tensor, in a new one; gradients flow to the root."""
    refuse_process_set(process_set)
    result: Tensor = through(_Broadcast, tensor, root_rank, name)
    return result
