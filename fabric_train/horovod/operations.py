"""Collectives by Horovod's names, as scripts call them, and which of them are refused.

Each has a form that waits and one that returns a handle (``_async``); some have forms that write
into their argument (a last ``_``). Ranks match requests by name, and those without a name by their
order.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fabric_train.horovod import context
from fabric_train.horovod.adasum import check_power_of_two
from fabric_train.horovod.collectives import Collective, ReduceOp
from fabric_train.horovod.engine import Handle

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def submit(name: str | None, tensors: Sequence[Tensor], request: Collective) -> Handle:
    """Hands a request to the engine, as ``KIND.NAME``; it numbers requests without a name."""
    here = context.get()
    if name is None:
        number = here.names[request.kind] = here.names.get(request.kind, 0) + 1
        name = f"noname.{number}"
    detached = [tensor.detach() for tensor in tensors]
    return here.engine.submit(Handle(f"{request.kind}.{name}", request, detached))


def synchronize(handle: Handle) -> Tensor:
    """The result of an asynchronous request; blocks. Raises HorovodInternalError if it failed."""
    result: Tensor = handle.wait()[0]
    return result


def poll(handle: Handle) -> bool:
    """Whether ``synchronize`` would return at once."""
    return handle.is_done()


def barrier() -> None:
    """Returns when all ranks have called it."""
    submit(None, [], Collective(kind="barrier")).wait()


# -- compression -----------------------------------------------------------------------------------


class NoneCompressor:
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and what ``decompress`` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The reduced tensor in its original type."""
        return tensor


class FP16Compressor(NoneCompressor):
    """Sends floats as float16: half the bytes of float32, and about three digits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors to choose from; a script's own class with both methods works as well."""

    none = NoneCompressor
    fp16 = FP16Compressor


# -- allreduce ---------------------------------------------------------------------------------


def plan_reduce(
    tensors: Sequence[Tensor],
    average: bool | None,
    op: ReduceOp | None,
    before: float = 1.0,
    after: float = 1.0,
) -> Collective:
    """The request; raises ValueError, NotImplementedError or InputError if it is impossible."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only op.")
        op = Average if average else Sum
    op = Average if op is None else ReduceOp(op)
    if op is Adasum:
        check_power_of_two(context.size())
        if any(not tensor.is_floating_point() for tensor in tensors):
            raise NotImplementedError("Adasum needs floating-point tensors")
    if any(tensor.is_sparse for tensor in tensors):
        raise NotImplementedError("a sparse tensor cannot be reduced: give tensor.to_dense()")
    return Collective(kind="allreduce", op=op, prescale=before, postscale=after)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Collective, name: str | None, tensor: Tensor) -> Any:
        ctx.request = request
        return synchronize(submit(name, [tensor.detach().clone()], request))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, _through(_Allreduce, ctx.request, None, grads[0])


def _through(function: Any, *arguments: Any) -> Any:
    """Applies an autograd function."""
    return function.apply(*arguments)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
) -> Tensor:
    """A new tensor, reduced over all ranks (the average, unless ``op``); gradients flow."""
    request = plan_reduce([tensor], average, op)
    small, made = compression.compress(tensor)
    result: Tensor = compression.decompress(_through(_Allreduce, request, name, small), made)
    return result


def reduce_in_place(
    tensors: Sequence[Tensor], name: str, op: ReduceOp, before: float = 1.0, after: float = 1.0
) -> Handle:
    """Starts to reduce tensors in place, in one transfer; returns the handle."""
    return submit(name, tensors, plan_reduce(tensors, None, op, before, after))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
) -> Handle:
    """Starts to reduce a tensor in place; returns the handle."""
    return submit(name, [tensor], plan_reduce([tensor], average, op))


def allreduce_async(tensor: Tensor, *rest: Any, **more: Any) -> Handle:
    """Starts to reduce into a new tensor; returns the handle."""
    return allreduce_async_(tensor.detach().clone(), *rest, **more)


def allreduce_(tensor: Tensor, *rest: Any, **more: Any) -> Tensor:
    """Reduces a tensor in place."""
    allreduce_async_(tensor, *rest, **more).wait()
    return tensor


# -- allgather ---------------------------------------------------------------------------------


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, tensor: Tensor) -> Any:
        whole = synchronize(allgather_async(tensor, name))
        ctx.rows = len(tensor)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # The average, as in Horovod: each rank's loss counts one share of the whole.
        mean = allreduce(grads[0], op=Average)
        before = allgather(torch.tensor([ctx.rows]))[: context.rank()].sum()
        return None, mean.narrow(0, int(before), ctx.rows)


def allgather_async(tensor: Tensor, name: str | None = None) -> Handle:
    """Starts to gather the rows of all ranks; returns the handle."""
    if tensor.dim() == 0:
        raise ValueError("a tensor without dimensions cannot be gathered: give tensor.reshape(1)")
    return submit(name, [tensor], Collective(kind="allgather"))


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """The rows of all ranks, in the order of ranks; ranks may have unequal numbers of rows."""
    result: Tensor = _through(_Allgather, name, tensor)
    return result


# -- broadcast ---------------------------------------------------------------------------------


def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Starts to replace a tensor by the root's; returns the handle."""
    if not 0 <= root_rank < context.size():
        raise ValueError(f"root_rank {root_rank} is not one of {context.size()} ranks")
    return submit(name, [tensor], Collective(kind="broadcast", root=root_rank))


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Starts to copy the root's tensor into a new one; returns the handle."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Replaces a tensor by the root's."""
    broadcast_async_(tensor, root_rank, name).wait()
    return tensor


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """The root's tensor, in a new one."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


# -- parameters and objects -----------------------------------------------------------------------


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Replaces tensors by the root's: a ``state_dict()``, ``named_parameters()`` or a list.

    Members of a ``state_dict`` that are no tensors are left alone. All ranks must give the same
    names.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    else:
        pairs = [p if isinstance(p, tuple) else (str(n), p) for n, p in enumerate(params)]
    handles = [
        broadcast_async_(tensor, root_rank, f"parameter.{name}")
        for name, tensor in pairs
        if isinstance(tensor, Tensor)
    ]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int, model: object = None) -> None:
    """Replaces the optimizer's state and options by the root's, also before the first step."""
    is_root = context.rank() == root_rank
    state = broadcast_object(copy_to_cpu(optimizer.state_dict()) if is_root else None, root_rank)
    if not is_root:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object, which pickle must support."""
    is_root = context.rank() == root_rank
    content = bytearray(pickle.dumps(obj)) if is_root else bytearray()
    length = broadcast(torch.tensor([len(content)]), root_rank, name and f"{name}.size")
    content = content or bytearray(int(length))
    broadcast_(torch.frombuffer(content, dtype=torch.uint8), root_rank, name and f"{name}.object")
    return obj if is_root else pickle.loads(content)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Every rank's object, in the order of ranks."""
    content = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    lengths = allgather(torch.tensor([len(content)]), name and f"{name}.size").tolist()
    whole = allgather(content, name and f"{name}.object")
    return [pickle.loads(part.numpy().tobytes()) for part in whole.split(lengths)]


def copy_to_cpu(value: Any) -> Any:
    """A deep copy whose tensors are in CPU memory."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="cpu", requires_grad=False).copy_(value.detach())
    if type(value) in (dict, OrderedDict):  # a Counter's constructor would count its items
        return type(value)((key, copy_to_cpu(each)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(copy_to_cpu(each) for each in value)
    return copy.deepcopy(value)
