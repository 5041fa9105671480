"""Sends a training state from one rank to all others, over the network and not through files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fabric_train.ranks import Ranks

PIECE_BYTES = 32 * 1024 * 1024
"""Tensors are sent together in pieces of about this size, each with a copy in memory."""


class Stateful(Protocol):
    """Anything else that a training changes: a schedule, a scaler, counters."""

    def state_dict(self) -> dict[str, Any]:
        """What it holds, as values that pickle takes."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """The reverse of ``state_dict``."""
        ...


def send_model(model: nn.Module, ranks: Ranks, *, source: int, receives: bool) -> None:
    """Gives the weights and buffers of rank ``source`` to those that ``receives``; all call it."""
    if ranks.group is None:
        return
    with torch.no_grad():
        for piece in cut([tensor.detach() for tensor in (*model.parameters(), *model.buffers())]):
            _send(piece, ranks, source=source, receives=receives)


def send_state(
    model: nn.Module,
    optimizer: Optimizer,
    ranks: Ranks,
    *,
    source: int,
    receives: bool,
) -> None:
    """Gives the state of rank ``source`` to the ranks that ``receives``; all must call it.

    ``model`` has the same weights and buffers, and ``optimizer`` the same groups, on all ranks.
    """
    moments: list[Tensor] = []
    outline: list[Any] = [None]
    if not receives:
        state = _take_out(optimizer.state_dict(), moments)
        outline = [(state, [describe(moment) for moment in moments])]
    dist.broadcast_object_list(outline, src=source, group=ranks.group)
    state, shapes = outline[0]
    if receives:
        moments = [torch.empty(shape, dtype=kind, device=device) for shape, kind, device in shapes]
    send_model(model, ranks, source=source, receives=receives)
    with torch.no_grad():
        for piece in cut(moments):
            _send(piece, ranks, source=source, receives=receives)
    if receives:
        optimizer.load_state_dict(_put_back(state, moments))


def send_parts(parts: Sequence[Stateful], ranks: Ranks, *, source: int) -> None:
    """Makes the parts of all ranks equal to those of rank ``source``; all must call it."""
    if not parts or ranks.group is None:
        return
    is_source = dist.get_rank() == source
    values: list[Any] = [[part.state_dict() for part in parts] if is_source else None]
    dist.broadcast_object_list(values, src=source, group=ranks.group)
    if not is_source:
        for part, state in zip(parts, values[0], strict=True):
            part.load_state_dict(state)


def describe(tensor: Tensor) -> tuple[torch.Size, torch.dtype, str]:
    """What another rank needs to make room for a tensor, on its own device of the same kind."""
    return tensor.shape, tensor.dtype, tensor.device.type


def cut(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of neighbours of one type and device, of about PIECE_BYTES each."""
    piece: list[Tensor] = []
    for tensor in tensors:
        size = sum(part.nbytes for part in piece)
        is_alike = piece and (piece[0].dtype, piece[0].device) == (tensor.dtype, tensor.device)
        if piece and (not is_alike or size + tensor.nbytes > PIECE_BYTES):
            yield piece
            piece = []
        piece.append(tensor)
    if piece:
        yield piece


def _send(piece: list[Tensor], ranks: Ranks, *, source: int, receives: bool) -> None:
    if len(piece) == 1 and piece[0].is_contiguous():
        # A large one, without a copy.
        group = None if piece[0].is_cuda else ranks.group
        dist.broadcast(piece[0].view(-1).view(torch.uint8), src=source, group=group)
        return
    if receives:
        flat = piece[0].new_empty(sum(tensor.numel() for tensor in piece))
    else:
        flat = torch.cat([tensor.reshape(-1) for tensor in piece])
    # The training's own group, with the fastest network there is; it may not take host memory.
    group = None if flat.is_cuda else ranks.group
    # As bytes, because gloo knows fewer types than torch.
    dist.broadcast(flat.view(torch.uint8), src=source, group=group)
    if receives:
        for tensor, new in zip(
            piece, flat.split([tensor.numel() for tensor in piece]), strict=True
        ):
            tensor.copy_(new.view(tensor.shape))


class _Place(int):
    """Stands for a tensor in a state that is sent without its tensors."""


def _take_out(value: Any, tensors: list[Tensor]) -> Any:
    """The value with each tensor replaced by its place in ``tensors``."""
    match value:
        case Tensor():
            tensors.append(value.detach())
            return _Place(len(tensors) - 1)
        case dict():
            return {key: _take_out(item, tensors) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_take_out(item, tensors) for item in value)
    return value


def _put_back(value: Any, tensors: list[Tensor]) -> Any:
    """The reverse of ``_take_out``."""
    match value:
        case _Place():
            return tensors[value]
        case dict():
            return {key: _put_back(item, tensors) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_put_back(item, tensors) for item in value)
    return value
