"""DDP with a communication hook, which sends the gradients in fewer bytes: in 16 bits (``fp16``,
``bf16``), in 8 (``bagua:bytegrad``), or as the product of two thin matrices (``powersgd``).

``fabric_train.communication.hooks`` has the mathematics and its sources; those of 16 bits are
torch's own. For n weights and W processes ``ddp`` sends 4 * 2 (W - 1) / W * n bytes in a step.

``fp16`` and ``bf16``: memory: as ``ddp``, and one bucket (25 MiB) in 16 bits. Bytes of a step: half
of ``ddp``'s. The ranks' gradients are divided by W, added up and rounded in 16 bits. ``fp16`` loses
what is below 6e-8 and overflows above 65504; ``bf16`` has the range of 32 bits and three decimal
digits, and needs NCCL.

``bagua:bytegrad``: memory: as ``ddp``, and the gradients once more in 8 bits. Bytes of a step: a
quarter of ``ddp``'s, 2 (W - 1) / W * n * (1 + 8 / 512). Nothing is remembered from step to step.
Within 512 gradients that share a scale, those below 1/510 of the span are rounded to zero.

``powersgd``: memory: the gradients once more, for what a rank's last product left out. Bytes of a
step: for each weight of n rows and m columns that is compressed, 4 * r (n + m) * 2 (W - 1) / W
instead of 4 * n m * 2 (W - 1) / W, r the ``matrix_approximation_rank``; biases, small weights, and
the first ``start_powerSGD_iter`` steps are sent whole. Checkpoints hold the errors, the matrices
and the count of steps. All ranks write them, so all nodes must share the folder. In a world of
another size every rank begins with the mean of the errors, which is what would have reached the
weights. If one process alone resumes, the errors are lost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from fabric_train.checkpointing.memory import share_row, take_row
from fabric_train.communication.hooks import ByteGradHook, PowerSgdHook
from fabric_train.communication.reduction import FastReduction
from fabric_train.errors import InputError
from fabric_train.strategies.ddp import Replicated, check_sync_batchnorm, wrap_ddp
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class HookedDdp(Replicated):
    """Sends gradients while the backward pass of a rank's last micro-batch runs.

    A process alone trains without the hook.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        place = self.place
        check_sync_batchnorm(model, self.virtual_shards, place.world_size)
        wrapped: nn.Module = model
        if place.world_size > 1:
            wrapped = ddp = wrap_ddp(model, place)
            self.attach(ddp)
        self._reduction = FastReduction(
            wrapped, virtual_shards=self.virtual_shards, world_size=place.world_size
        )
        return wrapped

    @abstractmethod
    def attach(self, ddp: DistributedDataParallel) -> None:
        """Registers the hook."""


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


@dataclass
class ByteGrad(HookedDdp):
    """DDP whose gradients travel in 8 bits, with a scale for each 512 of them."""

    name: ClassVar[str] = "bagua:bytegrad"

    def attach(self, ddp: DistributedDataParallel) -> None:
        ByteGradHook().attach(ddp)


@dataclass
class PowerSgd(HookedDdp):
    """DDP whose gradient matrices are sent as the product of two thin ones, with what they left
    out added to the next step's (Vogels et al. 2019). The errors are in checkpoints.
    """

    name: ClassVar[str] = "powersgd"
    heals: ClassVar[bool] = False  # each rank's error is its own
    has_rows: ClassVar[bool] = True

    matrix_approximation_rank: int = 1
    """Columns of the thin matrices: more of them cost more bytes and lose less."""
    start_powerSGD_iter: int = 100  # noqa: N815 (torch's spelling)
    """Steps at the start of a training whose gradients are sent whole; about a tenth of all."""
    min_compression_rate: float = 2.0
    """A weight is compressed if that divides its bytes by at least this."""

    def check(self, world: World | None, device: Device) -> None:
        self.require(matrix_approximation_rank=1, start_powerSGD_iter=0, min_compression_rate=0)

    def wrap(self, model: nn.Module) -> nn.Module:
        self.hook = PowerSgdHook(
            model,
            matrix_approximation_rank=self.matrix_approximation_rank,
            start_powerSGD_iter=self.start_powerSGD_iter,
            min_compression_rate=self.min_compression_rate,
        )
        return super().wrap(model)

    def attach(self, ddp: DistributedDataParallel) -> None:
        self.hook.attach(ddp)

    def step(self, number: int) -> None:
        super().step(number)
        self.hook.iteration = number + 1

    def memory(self) -> dict[str, Tensor]:
        memory = {"iteration": torch.tensor(self.hook.iteration)}
        memory |= {f"q.{name}": q for name, q in self.hook.qs.items()}
        return memory | {
            f"error.{name}": share_row(each) for name, each in self.hook.errors.items()
        }

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        self.hook.iteration = int(saved.get("iteration", 0))
        for name, tensor in saved.items():
            kind, _, of = name.partition(".")
            if kind == "q":
                self.hook.qs[of] = tensor.to(self.place.device, copy=True)
            elif kind == "error" and self.place.world_size > 1:
                row = take_row(tensor)
                error = tensor.mean(0) if row is None else row
                self.hook.errors[of] = error.to(self.place.device, copy=True)
