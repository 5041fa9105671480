"""Tensors in 8 bits or 1 bit an element, and their mean over the ranks.

Each tensor is cut into blocks, and each block has a scale of its own: the layers of a model differ
in size by orders of magnitude. What a code keeps of a tensor does not depend on the tensors that
are sent along with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK = 512
"""Elements that share a scale: its 8 bytes are 1.6 % of 8-bit codes. A multiple of 8."""


class Codec(Protocol):
    """Turns blocks of numbers into bytes and back."""

    def encode(self, blocks: Tensor, counts: Tensor) -> Tensor:
        """``[blocks, BLOCK]`` of floats to ``[blocks, bytes]`` of uint8.

        ``counts``, ``[blocks, 1]``: how many numbers of a block count; the others are padding.
        """

    def decode(self, code: Tensor) -> Tensor:
        """``[blocks, bytes]`` of uint8 to ``[blocks, BLOCK]`` of 32-bit floats."""


class MinMaxUInt8:
    """256 equal steps between a block's smallest and largest number; zero stays zero.

    Bagua's quantiser of the same name (S. Gan et al. 2021, "BAGUA: Scaling up Distributed Learning
    with System Relaxations", and ``bagua_utils``): with scale s = 255 / (max - min), x becomes the
    whole number round(x s), counted from round(max s) - 255. Bagua adds 1e-7 to max - min, which
    swallows small gradients; this class adds 1e-7 times the largest absolute number.
    """

    def encode(self, blocks: Tensor, counts: Tensor) -> Tensor:
        rows = blocks.float()
        low, high = rows.aminmax(dim=1, keepdim=True)
        span = high - low + 1e-7 * torch.maximum(low.abs(), high.abs()) + 1e-30
        scale = 255.0 / span
        lower = (high * scale).round() - 255.0
        levels = ((rows * scale).round() - lower).clamp(0.0, 255.0).to(torch.uint8)
        return torch.cat([torch.cat([lower, scale], 1).view(torch.uint8), levels], 1)

    def decode(self, code: Tensor) -> Tensor:
        head = read_floats(code[:, :8])
        return (code[:, 8:].float() + head[:, :1]) / head[:, 1:]


class OneBit:
    """A block's signs, and the mean of its absolute values in 32 bits.

    The quantiser of 1-bit Adam (H. Tang et al. 2021, arXiv:2102.02888); use it with error feedback.
    """

    def encode(self, blocks: Tensor, counts: Tensor) -> Tensor:
        rows = blocks.float()
        counted = torch.arange(BLOCK, device=rows.device) < counts
        scale = (rows.abs() * counted).sum(dim=1, keepdim=True) / counts
        bits = (rows >= 0).view(len(rows), -1, 8).to(torch.uint8)
        signs = (bits * self._places(rows.device)).sum(2, dtype=torch.uint8)
        return torch.cat([scale.view(torch.uint8), signs], 1)

    def decode(self, code: Tensor) -> Tensor:
        scale = read_floats(code[:, :4])
        bits = (code[:, 4:, None] & self._places(code.device)).ne(0).view(len(code), -1)
        return torch.where(bits, scale, -scale)

    @staticmethod
    def _places(device: torch.device) -> Tensor:
        return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)


def read_floats(code: Tensor) -> Tensor:
    """``[rows, 4 n]`` of uint8 as ``[rows, n]`` floats."""
    # A copy in any case: a single row counts as contiguous with strides that ``view`` refuses.
    return code.reshape(-1).clone().view(torch.float32).view(len(code), -1)


class Blocks:
    """Tensors as blocks: each tensor begins a new block, and zeros fill its last one.

    ``ranks``: the number of blocks is a multiple of it, so that each rank has equally many.
    """

    def __init__(self, tensors: Sequence[Tensor], ranks: int = 1) -> None:
        self._sizes = [tensor.numel() for tensor in tensors]
        self._device = tensors[0].device
        blocks = [-(-size // BLOCK) for size in self._sizes]
        self.count = -(-sum(blocks) // ranks) * ranks
        self._starts, counts, start = [], torch.ones(self.count, 1), 0
        for size, each in zip(self._sizes, blocks, strict=True):
            self._starts.append(start * BLOCK)
            counts[start : start + each] = BLOCK
            if size % BLOCK:
                counts[start + each - 1] = size % BLOCK
            start += each
        self.counts = counts.to(self._device)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """A copy, ``[count, BLOCK]``, in 32 bits."""
        packed = torch.zeros(self.count, BLOCK, device=self._device)
        with torch.no_grad():
            for place, tensor in zip(self._places(packed), tensors, strict=True):
                place.copy_(tensor.reshape(-1))
        return packed

    def unpack(self, packed: Tensor, tensors: Sequence[Tensor]) -> None:
        """The reverse of ``pack``, in place."""
        with torch.no_grad():
            for place, tensor in zip(self._places(packed), tensors, strict=True):
                tensor.copy_(place.view(tensor.shape))

    def _places(self, packed: Tensor) -> list[Tensor]:
        flat = packed.view(-1)
        return [
            flat[start : start + size]
            for start, size in zip(self._starts, self._sizes, strict=True)
        ]


class CompressedMean:
    """The mean of tensors over the ranks, compressed both ways (Bagua's C_LP_S).

    Each rank sends its blocks of part r to rank r, which averages what it decodes, and sends the
    compressed mean to all: all ranks end with the same numbers. With ``error_feedback`` a rank adds
    what its last code left out to its next tensors, and to its next mean (1-bit Adam, algorithm 1).

    ``like``: tensors of the shapes that will come. Call ``start``, ``relay`` and ``finish`` in this
    order, on all ranks. Sends 2 (W - 1) / W * n * (1 + 8 / 512) bytes for n elements with 8 bits.
    """

    def __init__(
        self,
        codec: Codec,
        like: Sequence[Tensor],
        *,
        error_feedback: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._codec, self._group = codec, group
        self._ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        self.blocks = Blocks(like, self._ranks)
        part = self.blocks.count // self._ranks
        self._part = slice(rank * part, (rank + 1) * part)
        self.error: Tensor | None = None
        """What this rank's last code left out, ``[blocks, BLOCK]``."""
        self.mean_error: Tensor | None = None
        """What the last code of the mean of this rank's part left out, ``[blocks / W, BLOCK]``."""
        if error_feedback:
            self.error = torch.zeros_like(self.blocks.pack(like))
            self.mean_error = torch.zeros_like(self.error[self._part])
        self._received = torch.empty(0)
        self._work: dist.Work | None = None

    def start(self, tensors: Sequence[Tensor]) -> None:
        """Begins to send this rank's tensors; does not block."""
        values = self.blocks.pack(tensors)
        if self.error is not None:
            values += self.error
        code = self._codec.encode(values, self.blocks.counts)
        if self.error is not None:
            torch.sub(values, self._codec.decode(code), out=self.error)
        self._received = torch.empty_like(code)
        self._work = dist.all_to_all_single(self._received, code, group=self._group, async_op=True)

    def relay(self) -> None:
        """Waits for all ranks' blocks of this rank's part, and begins to send their mean."""
        self._wait()
        mean = self._codec.decode(self._received).view(self._ranks, -1, BLOCK).mean(0)
        if self.mean_error is not None:
            mean += self.mean_error
        code = self._codec.encode(mean, self.blocks.counts[self._part])
        if self.mean_error is not None:
            torch.sub(mean, self._codec.decode(code), out=self.mean_error)
        self._received = code.new_empty(self.blocks.count, code.shape[1])
        self._work = dist.all_gather(
            list(self._received.split(len(code))), code, group=self._group, async_op=True
        )

    def finish(self, tensors: Sequence[Tensor]) -> None:
        """Waits for all parts of the mean, and writes it into the tensors."""
        self._wait()
        self.blocks.unpack(self._codec.decode(self._received), tensors)
        self._received = torch.empty(0)

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Replaces the tensors by their mean; blocks."""
        self.start(tensors)
        self.relay()
        self.finish(tensors)

    def load_errors(self, rank_error: Tensor, mean: Tensor) -> None:
        """Takes the errors that a rank had in a world of the same size."""
        if self.error is not None and self.mean_error is not None:
            self.error.copy_(rank_error)
            self.mean_error.copy_(mean)

    def spread_errors(self, rank_error: Tensor, mean: Tensor) -> None:
        """Takes errors from another world size: this rank's ``rank_error``, and the ``mean`` of all
        parts."""
        if self.error is not None and self.mean_error is not None:
            n = min(len(rank_error), self.blocks.count)  # worlds differ by empty blocks at the end
            self.error.zero_()[:n] = rank_error[:n].to(self.error)
            whole = torch.zeros_like(self.error)
            whole[:n] = mean[:n].to(whole)
            self.mean_error.copy_(whole[self._part])

    def _wait(self) -> None:
        if self._work is None:
            raise RuntimeError("CompressedMean: start, relay and finish are called in this order")
        self._work.wait()
        self._work = None
