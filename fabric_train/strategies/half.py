"""DDP whose gradients are sent in 16 bits, by torch's own communication hooks.

Memory: as ``ddp``, and one bucket (25 MiB) in 16 bits. Bytes of a step: half of ``ddp``'s,
2 * 2 (W - 1) / W * n for n weights. The ranks' gradients are divided by W, added up and rounded in
16 bits. ``fp16`` loses what is below 6e-8 and overflows above 65504; ``bf16`` has the range of 32
bits and three decimal digits, and needs NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from fabric_train.errors import InputError
from fabric_train.strategies.hooked import HookedDdp
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Fp16(HookedDdp):
    """DDP whose gradients travel in 16 bits; it loses what is below 6e-8 and overflows above
    65504.
    """

    name: ClassVar[str] = "fp16"

    def attach(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(None, fp16_compress_hook)


@dataclass
class Bf16(HookedDdp):
    """As ``fp16``, in bfloat16: the range of 32 bits and three decimal digits. It needs NCCL, and
    is refused on CPUs.
    """

    name: ClassVar[str] = "bf16"

    def check(self, world: World | None, device: Device) -> None:
        if world is not None and device == "cpu":
            raise InputError(
                "--strategy bf16: the processes of a training on CPUs talk by gloo, and torch's "
                "DDP sends bfloat16 by NCCL only",
                "--strategy fp16, which sends as few bytes",
            )

    def attach(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(None, bf16_compress_hook)
