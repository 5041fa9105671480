"""Many tensors as one vector and one message: their mean over the ranks, and replicas that are
brought together. ``mean`` does it in buckets, by weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of all elements, one tensor after the other, ``[elements]``.

    In 32 bits, or in 64 if a tensor has 64: gloo does not add up smaller types well.
    """
    parts = [tensor.detach().reshape(-1) for tensor in tensors]
    wide = any(part.dtype == torch.float64 for part in parts)
    return torch.cat([part.to(torch.float64 if wide else torch.float32) for part in parts])


def write_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """The reverse of ``flatten``, in place."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def average_gradients(
    parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None = None
) -> None:
    """Replaces each gradient by its mean over the ranks; blocks. All ranks must call it."""
    average(list(fill_gradients(parameters)), group)


def fill_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[Tensor]:
    """All gradients; a missing gradient becomes zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        yield parameter.grad


def average(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replaces each tensor by its mean over the ranks; blocks. All ranks must call it."""
    if not tensors:
        return
    flat = flatten(tensors)
    dist.all_reduce(flat, group=group)
    write_back(flat.div_(dist.get_world_size(group)), tensors)


def bring_together(
    model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None
) -> None:
    """Makes replicas that have drifted apart equal, by averaging their weights and moments.

    Averages buffers of floating-point numbers too, such as BatchNorm's; other buffers become rank
    0's. Blocks, and sends each tensor once; all ranks must call it after equally many steps.
    """
    average([each for each in model.parameters() if each.requires_grad], group)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            average([buffer], group)
        else:
            dist.broadcast(buffer, src=dist.get_global_rank(group, 0) if group else 0, group=group)
    moments: dict[str, list[Tensor]] = {}
    for parameter in model.parameters():
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
                moments.setdefault(name, []).append(value)
    for values in moments.values():
        average(values, group)
