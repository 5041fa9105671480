"""Where a rank's part of a weight lies in the whole weight; gathers parts, and clips gradients that
ranks hold in parts.

Tensor parallelism cuts a weight into parts, and each rank's part is a plain tensor. A ``Cut`` says
where such a part belongs, so that checkpoints hold the whole weight under its own name, and any
number of processes can load it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

STAGE = "holds_a_stage"
"""The attribute that marks a model with only some of its members, as on a pipeline's rank."""
CUTS = "cuts"
"""The attribute of a module whose weights are parts: a ``Cut`` for each weight's name."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A weight of ``size`` along ``dim``, shared by ``ranks`` ranks; this is ``rank``'s part.

    With ``blocks`` the weight is that many equal blocks along ``dim``, such as queries, keys and
    values, and each rank has an equal part of every block.
    """

    dim: int
    size: int
    rank: int
    ranks: int
    blocks: int = 1

    def runs(self, rank: int) -> list[tuple[int, int]]:
        """Start and length in the whole weight of each run of a rank's part, in order."""
        block = self.size // self.blocks
        length = block // self.ranks
        return [(number * block + rank * length, length) for number in range(self.blocks)]

    def cut_out(self, whole: Tensor) -> Tensor:
        """This rank's part, as a tensor of its own."""
        parts = [whole.narrow(self.dim, start, length) for start, length in self.runs(self.rank)]
        return torch.cat(parts, self.dim).contiguous()

    def join(self, parts: list[Tensor]) -> Tensor:
        """The whole weight, joined from all ranks' parts in the order of ranks."""
        runs = [part.chunk(self.blocks, self.dim) for part in parts]
        return torch.cat([run[block] for block in range(self.blocks) for run in runs], self.dim)

    def whole_shape(self, shape: torch.Size) -> list[int]:
        """The whole weight's shape, from the shape of a part."""
        return [self.size if dim == self.dim else length for dim, length in enumerate(shape)]

    def locate(self, part: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
        """Views of this process' share of the part, and where each begins in the whole weight.

        A part that is a DTensor is itself shared by data parallel processes (FSDP2).
        """
        local, first = part.detach(), [0] * part.dim()
        if isinstance(part, DTensor):
            local = local_part(part).detach()
            _, offsets = compute_local_shape_and_global_offset(
                part.shape, part.device_mesh, part.placements
            )
            first = list(offsets)
        if not local.numel():
            return []
        begin, end = first[self.dim], first[self.dim] + local.shape[self.dim]
        blocks, length_before = [], 0
        for start, length in self.runs(self.rank):
            low, high = max(begin, length_before), min(end, length_before + length)
            if low < high:
                at = [
                    start + low - length_before if d == self.dim else o for d, o in enumerate(first)
                ]
                blocks.append((tuple(at), local.narrow(self.dim, low - begin, high - low)))
            length_before += length
        return blocks


class Pieces(torch.Tensor):
    """A whole tensor of which this process holds some pieces, for torch.distributed.checkpoint.

    Has the whole tensor's shape, and supports no computation. DCP calls the last three methods.
    """

    pieces: list[tuple[tuple[int, ...], Tensor]]

    @staticmethod
    def __new__(cls, part: Tensor, cut: Cut) -> Pieces:
        made: Pieces = torch.Tensor._make_wrapper_subclass(
            cls, cut.whole_shape(part.shape), dtype=part.dtype, device=part.device
        )
        made.pieces = cut.locate(part)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} of a tensor that is only written and read")

    def __create_write_items__(self, fqn: str, of: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(at)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=torch.Size(at), sizes=piece.shape),
                    properties=TensorProperties.create_from_tensor(piece),
                    size=self.shape,
                ),
            )
            for at, piece in self.pieces
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(offsets=torch.Size(at), sizes=piece.shape)
            for at, piece in self.pieces
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(piece for at, piece in self.pieces if torch.Size(at) == index.offset)


def find_cuts(model: nn.Module) -> dict[str, Cut]:
    """The cuts of a model's weights, by names that leave out wrappers such as DDP."""
    return {
        f"{prefix}.{name}".removeprefix("module.").removeprefix("."): cut
        for prefix, module in model.named_modules()
        for name, cut in getattr(module, CUTS, {}).items()
    }


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of the weights, as under FSDP2 or in a pipeline, and not copies."""
    return (
        bool(getattr(model, STAGE, False))
        or any(isinstance(weight, DTensor) for weight in model.parameters())
        or bool(find_cuts(model))
    )


def as_pieces(tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    """The tensors, with parts wrapped as ``Pieces`` of the whole."""
    return {
        name: Pieces(tensor, cuts[name]) if name in cuts else tensor
        for name, tensor in tensors.items()
    }


def gather_parts(
    tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut], group: dist.ProcessGroup
) -> dict[str, Tensor]:
    """The tensors with every part made whole; all ranks of ``group`` must call it."""
    whole = {}
    for name, tensor in tensors.items():
        local = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        if name in cuts:
            local = local.to(find_device(group))
            parts = [torch.empty_like(local) for _ in range(cuts[name].ranks)]
            dist.all_gather(parts, local.contiguous(), group=group)
            local = cuts[name].join(parts)
        whole[name] = local
    return whole


def gather_members(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The tensors of all ranks, by name; if several ranks have a name, the lowest rank's tensor.

    All ranks of ``group`` must call it.
    """
    known: list[Any] = [None] * dist.get_world_size(group)
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    dist.all_gather_object(known, shapes, group=group)
    owners = {name: rank for rank, names in reversed(list(enumerate(known))) for name in names}
    rank, device = dist.get_rank(group), find_device(group)
    whole = {}
    for name, owner in owners.items():
        shape, dtype = known[owner][name]
        tensor = (
            tensors[name].detach().contiguous()
            if owner == rank
            else torch.empty(shape, dtype=dtype, device=device)
        )
        dist.broadcast(tensor, src=dist.get_global_rank(group, owner), group=group)
        whole[name] = tensor
    return whole


def find_device(group: dist.ProcessGroup) -> torch.device:
    """The device of the tensors that ``group`` can send."""
    is_cuda = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")


def clip_over_ranks(
    weights: Sequence[Tensor],
    counted: Sequence[Tensor],
    group: dist.ProcessGroup | None,
    max_norm: float,
) -> Tensor:
    """Clips a gradient that several ranks hold parts of, and returns its norm before clipping.

    ``weights``: this rank's. ``counted``: the weights whose gradients this rank adds to the norm,
    so that each counts once over ``group``. All ranks of ``group`` must call it; None stands for
    one rank alone. The rule is ``torch.nn.utils.clip_grad_norm_``'s.
    """
    gradients = [local_part(weight.grad) for weight in weights if weight.grad is not None]
    counted_gradients = [local_part(weight.grad) for weight in counted if weight.grad is not None]
    squares = torch.zeros(())
    if gradients:
        squares = squares.to(gradients[0].device, gradients[0].dtype)
    if counted_gradients:
        squares += torch.stack(torch._foreach_norm(counted_gradients)).square().sum()
    if group is not None:
        dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    if gradients:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
