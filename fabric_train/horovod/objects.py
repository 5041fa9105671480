"""Broadcasts parameters, optimizer states and objects, and gathers objects."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
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
)

Named = Mapping[str, Any] | Iterable[Any]


def broadcast_parameters(params: Named, root_rank: int) -> None:
    """Replaces tensors by the root's: a ``state_dict()``, ``named_parameters()`` or a list.

    Members of a ``state_dict`` that are no tensors are left alone. All ranks must give the same
    names.
    """
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


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int, model: object = None) -> None:
    """Replaces the optimizer's state and its options, such as the learning rate, by the root's.

    An optimizer that has made no step gets the root's state, too. Raises ValueError for LBFGS, as
    Horovod does.
    """
    if isinstance(optimizer, LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = context.get().starter.rank == root_rank
    state = broadcast_object(copy_to_cpu(optimizer.state_dict()) if is_root else None, root_rank)
    if not is_root:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object, which pickle must support."""
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
