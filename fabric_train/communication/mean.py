"""The weighted mean of all ranks' tensors, in messages of a bounded size; ``flat`` takes one
vector, unweighted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 32 * 2**20
"""Size of one message: large enough for the network, small beside the model."""


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
    with torch.no_grad():
        for bucket in cut_buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket]).mul_(weight)
            dist.all_reduce(flat, group=group)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


def average_gradients(
    model: nn.Module, *, share: float | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Replaces each gradient by its mean, as ``average`` does."""
    average(fill_gradients(model), share=share, group=group)


def fill_gradients(model: nn.Module) -> list[Tensor]:
    """All gradients; a missing gradient becomes zeros.

    Otherwise an optimizer would have moments on some ranks only.
    """
    gradients = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    return gradients


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
