"""Compressors, by which gradients travel in fewer bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
