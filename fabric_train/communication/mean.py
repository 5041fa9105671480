"""Many tensors as one vector, and their mean over the ranks, also a weighted one, in messages of a
bounded size; replicas that are brought together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

BUCKET_BYTES = 32 * 2**20
"""Size of one message: large enough for the network, small beside the model."""


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


def average(
    tensors: Iterable[Tensor], *, share: float | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Replaces each tensor by its mean over the ranks, to the same bits on all of them; blocks.

    ``share``: this rank's weight in the mean; all ranks' shares add up to 1. Without it all ranks
    weigh the same. All ranks must call it, with tensors of equal shapes and types. Without a
    process group, and for one rank alone, it changes nothing.
    """
    size = dist.get_world_size(group) if dist.is_initialized() else 1
    if size == 1:
        return
    weight = 1.0 / size if share is None else share
    for bucket in cut_buckets(tensors):
        flat = flatten(bucket).mul_(weight)
        dist.all_reduce(flat, group=group)
        write_back(flat, bucket)


def average_gradients(
    parameters: Iterable[nn.Parameter],
    *,
    share: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replaces each gradient by its mean, as ``average`` does."""
    average(fill_gradients(parameters), share=share, group=group)


def fill_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of what is trained; a missing gradient becomes zeros.

    Otherwise an optimizer would have moments on some ranks only.
    """
    gradients = []
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    return gradients


def bring_together(model: nn.Module, optimizer: Optimizer) -> None:
    """Makes replicas that have drifted apart equal, by averaging their weights and moments.

    Averages buffers of floating-point numbers too, such as BatchNorm's; other buffers become rank
    0's. Blocks, and sends each tensor once; all ranks must call it after equally many steps.
    """
    average(find_weights(model).values())
    average(find_statistics(model).values())
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            dist.broadcast(buffer, src=0)
    moments: dict[str, list[Tensor]] = {}
    for parameter in model.parameters():
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
                moments.setdefault(name, []).append(value)
    for values in moments.values():
        average(values)


def cut_buckets(tensors: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The tensors in groups of one type and up to BUCKET_BYTES, in an order that is the same on
    all ranks; a larger tensor is a group of its own."""
    buckets: dict[torch.dtype, list[Tensor]] = {}
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        kind = tensor.dtype
        if buckets.get(kind) and sizes[kind] + size > BUCKET_BYTES:
            yield buckets.pop(kind)
            sizes[kind] = 0
        buckets.setdefault(kind, []).append(tensor)
        sizes[kind] = sizes.get(kind, 0) + size
    yield from buckets.values()


def find_weights(model: nn.Module) -> dict[str, Tensor]:
    """The trained weights by name, without a graph."""
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def find_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The buffers of floating-point numbers by name, such as BatchNorm's running mean.

    They differ between replicas as soon as these have seen different samples.
    """
    return {name: each for name, each in model.named_buffers() if each.is_floating_point()}
