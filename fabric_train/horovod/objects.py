"""Broadcasts parameters, optimizer states and objects, and gathers objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from fabric_train.horovod import context
from fabric_train.horovod.operations import (
    allgather,
    broadcast_,
    broadcast_async_,
    refuse_process_set,
)

Named = Mapping[str, Any] | Iterable[Any]


def broadcast_parameters(params: Named, root_rank: int, process_set: object = None) -> None:
    """Replaces tensors by the root's: a ``state_dict()``, ``named_parameters()`` or a list.

    Members of a ``state_dict`` that are no tensors are left alone. All ranks must give the same
    names.
    """
    refuse_process_set(process_set)
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, Tensor):
        pairs = [
            each if isinstance(each, tuple) else (str(number), each)
            for number, each in enumerate(params)
        ]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [
        broadcast_async_(tensor, root_rank, f"parameter.{name}")
        for name, tensor in pairs
        if isinstance(tensor, Tensor)
    ]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: object = None, process_set: object = None
) -> None:
    """Replaces the optimizer's state and its options, such as the learning rate, by the root's.

    An optimizer that has made no step gets the root's state, too. Raises ValueError for LBFGS, as
    Horovod does.
    """
    refuse_process_set(process_set)
    if isinstance(optimizer, LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = context.get().starter.rank == root_rank
    state = optimizer.state_dict() if is_root else None
    tensors: list[Tensor] = []
    plain = _take_tensors(state, tensors) if is_root else None
    plain, kinds = broadcast_object(
        (plain, [(tuple(t.shape), t.dtype, t.device.type) for t in tensors]), root_rank
    )
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in kinds]
    broadcast_parameters(tensors, root_rank)
    if not is_root:
        optimizer.load_state_dict(_put_tensors(plain, tensors))


class _Place(int):
    """A tensor's number, which stands in its place."""


def _take_tensors(value: Any, taken: list[Tensor]) -> Any:
    """Copies dicts and lists with a number for each tensor; appends the tensors to ``taken``."""
    if isinstance(value, Tensor):
        taken.append(value.detach())
        return _Place(len(taken) - 1)
    if isinstance(value, dict):
        return {key: _take_tensors(each, taken) for key, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_take_tensors(each, taken) for each in value)
    return value


def _put_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value]
    if isinstance(value, dict):
        return {key: _put_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_put_tensors(each, tensors) for each in value)
    return value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: object = None
) -> Any:
    """The root's object, which pickle must support."""
    refuse_process_set(process_set)
    if context.get().starter.rank == root_rank:
        content = pickle.dumps(obj)
        length = torch.tensor([len(content)])
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        length = torch.tensor([0])
    broadcast_(length, root_rank, name and f"{name}.size")
    if context.get().starter.rank != root_rank:
        buffer = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(buffer, root_rank, name and f"{name}.object")
    is_root = context.get().starter.rank == root_rank
    return obj if is_root else pickle.loads(buffer.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: object = None) -> list[Any]:
    """Every rank's object, in the order of ranks."""
    refuse_process_set(process_set)
    content = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    lengths = allgather(torch.tensor([len(content)]), name and f"{name}.size").tolist()
    whole = allgather(content, name and f"{name}.object")
    return [pickle.loads(part.numpy().tobytes()) for part in whole.split(lengths)]
