"""deepspeed: the gradients and the optimizer's state in parts, by DeepSpeed's ZeRO, if installed.

## deepspeed

What it does: every process holds all weights. The optimizer's state, and with stage 2 the
gradients, are cut over the processes; each updates its part of the weights, and all gather them.
Weights and losses are those of one process up to rounding. DeepSpeed's engine makes the steps; it
was tried with DeepSpeed 0.19.8.

Options: ``stage`` (2), ``offload``. ``fsdp`` is ZeRO-3, and within torch.

Memory of a process, for P weights of 4 bytes under AdamW and W processes: 4 P for the weights,
12 P / W for its part of moments and a second copy of its weights, gradients of 4 P / W (stage 1:
4 P), and a message of up to 128 MiB. Rank 0 holds the whole moments in host memory while a
checkpoint is copied, and every process while one is loaded.

Bytes that a process sends in a step, with m micro-batches (those of the process with most of them):
(W - 1) / W * 4 P * (2 m + 1) with stage 2, which adds gradients up after each micro-batch;
(W - 1) / W * 4 P * 3 with stage 1.

Checkpoints have the whole model and optimizer state under their own names: they load in any number
of processes and under other strategies, and theirs under this one. DeepSpeed's own are not written.

What it cannot: ``reduction: exact``; weights that are not float32; optimizers that look at a whole
weight at once, such as Adafactor or LAMB: Adam, SGD and others that take each number for itself are
right. A weight without a gradient is updated as with a gradient of zeros.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fabric_train.errors import DivergedError, InputError
from fabric_train.strategies.strategy import BuildOptimizer, Device, Place, Strategy

if TYPE_CHECKING:
    from lightning.fabric.strategies.strategy import Strategy as FabricStrategy

    from fabric_train.worker_env import World

BUCKET_ELEMENTS = 2**25
"""The largest message; DeepSpeed's own choice would keep 2 GB for one."""
COUNTER = "step"
"""An optimizer's state that is no number for each weight."""


@dataclass
class DeepSpeed(Strategy):
    """Gives the model and the program's optimizer to DeepSpeed's engine.

    ``optimizer`` has the whole model's parameters, and a state only while it is saved or loaded.
    """

    name: ClassVar[str] = "deepspeed"
    equal_rounds: ClassVar[bool] = True

    stage: int = 2
    """1 cuts the optimizer's state, 2 the gradients as well."""
    offload: bool = False
    """Keep the optimizer's state in host memory, and update the weights there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine: Any = None

    def check(self, world: World | None, device: Device) -> None:
        if self.stage not in (1, 2):
            raise InputError(
                f"--strategy_options: stage={self.stage} of deepspeed is not 1 or 2",
                "--strategy fsdp, which cuts the weights too, as ZeRO-3 does"
                if self.stage == 3
                else "--strategy_options.stage 2",
            )
        if importlib.util.find_spec("deepspeed") is None:
            raise InputError(
                "--strategy deepspeed: the package deepspeed is not installed",
                "pip install deepspeed, or --strategy fsdp, which needs nothing but torch",
            )
        if world is None:
            raise InputError(
                "--strategy deepspeed needs a process group, and one process was started alone",
                "torchrun --nproc-per-node=1 -m train ..., or leave --strategy out",
            )

    def build_fabric_strategy(self, device: Device) -> FabricStrategy:
        from fabric_train.fabric import build_ddp

        # State in host memory is gathered there.
        both = device == "cuda" and self.offload
        return build_ddp(device, backend="cpu:gloo,cuda:nccl" if both else None)

    def setup(
        self,
        model: nn.Module,
        build_optimizer: BuildOptimizer,
        place: Place,
        *,
        virtual_shards: int | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        for name, weight in model.named_parameters():
            if weight.dtype != torch.float32:
                raise InputError(
                    f"--strategy deepspeed: {name} is {str(weight.dtype).removeprefix('torch.')}, "
                    "and weights are cut as float32",
                    "keep the weights in float32 (--precision bf16-mixed computes in bfloat16), "
                    "or --strategy ddp",
                )
        super().setup(model, build_optimizer, place, virtual_shards=virtual_shards)
        self.engine = import_deepspeed(place.device.type).initialize(
            model=model, optimizer=build_optimizer(model.parameters()), config=self.plan_config()
        )[0]
        self.model = self.engine
        return self.model, self.optimizer

    def plan_config(self) -> dict[str, Any]:
        """What DeepSpeed calls its config."""
        elements = sum(weight.numel() for weight in self.bare.parameters())
        bucket = min(BUCKET_ELEMENTS, elements + elements % 2)
        return {
            # For its own statistics; the loop says when a step ends.
            "train_micro_batch_size_per_gpu": 1,
            "steps_per_print": None,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": self.stage,
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
                "offload_optimizer": {"device": "cpu" if self.offload else "none"},
            },
            # Without it the engine would end the program's autocast. Gradients stay in 32 bits.
            "torch_autocast": {
                "enabled": self.precision == "bf16-mixed",
                "dtype": "bfloat16",
                "lower_precision_safe_modules": [],
            },
        }

    def describe(self) -> str:
        return f"DeepSpeed {import_module('deepspeed').__version__}, ZeRO-{self.stage}"

    # -- a step ---------------------------------------------------------------------------------

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        share = weight * self.replicas / self.virtual_shards
        self.engine.backward(loss * share, scale_wrt_gas=False)

    def clip(self, max_norm: float) -> None:
        """Shortens the gradient of the whole model to this length, in ``step``."""
        self.engine.optimizer.clip_grad = max_norm

    def step(self, number: int) -> None:
        zero = self.engine.optimizer
        for group, own in zip(
            zero.optimizer.param_groups, self.optimizer.param_groups, strict=True
        ):
            group.update({key: value for key, value in own.items() if key != "params"})
        self.engine.step()
        zero.clip_grad = 0.0
        if zero.overflow:
            # DeepSpeed leaves the step out, which one process would not.
            raise DivergedError(
                f"a gradient is not finite in step {number + 1}. "
                "Lower the learning rate (--lr) or warm up longer (--warmup_steps)"
            )
        self.steps = number + 1

    # -- checkpoints and tests ------------------------------------------------------------------

    def before_save(self) -> None:
        """Gathers the optimizer's state on rank 0, which writes it."""
        for weights, part in self._flat_weights():
            for key, value in self.engine.optimizer.optimizer.state[part].items():
                whole = self._gather(value) if is_cut(key, value) else None
                for weight, offset in weights if self.place.rank == 0 else ():
                    self.optimizer.state[weight][key] = (
                        value if whole is None else whole[offset:][: weight.numel()].view_as(weight)
                    )

    def after_save(self) -> None:
        self.optimizer.state.clear()

    @torch.no_grad()
    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        """Takes this process' part of the weights and of the state that were loaded."""
        self.engine.optimizer.refresh_fp32_params()
        for weights, part in self._flat_weights():
            own = self.engine.optimizer.optimizer.state[part]
            own.clear()
            start = self.place.rank * part.numel()
            for weight, offset in weights:
                for key, value in self.optimizer.state.get(weight, {}).items():
                    if not is_cut(key, value):
                        own[key] = value
                        continue
                    mine = own.setdefault(key, torch.zeros_like(part, dtype=value.dtype))
                    begin = max(offset, start)
                    end = min(offset + value.numel(), start + len(part))
                    if begin < end:
                        mine[begin - start : end - start] = value.flatten()[
                            begin - offset : end - offset
                        ]
        self.optimizer.state.clear()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()

    def _flat_weights(self) -> Iterator[tuple[list[tuple[nn.Parameter, int]], Tensor]]:
        """The weights of each group with their places in one flat tensor, and this process' part.

        The parts are equally long, and the last ones may be longer than what is left for them.
        """
        zero = self.engine.optimizer
        for weights, flat, part in zip(
            zero.bit16_groups,
            zero.bit16_groups_flat,
            zero.single_partition_of_fp32_groups,
            strict=True,
        ):
            yield [(each, each.storage_offset() - flat.storage_offset()) for each in weights], part

    def _gather(self, part: Tensor) -> Tensor | None:
        """All processes' parts one after the other, in host memory; only on rank 0."""
        leads = self.place.rank == 0
        whole = part.new_empty(self.place.world_size * len(part)) if leads else None
        dist.gather(part, list(whole.chunk(self.place.world_size)) if whole is not None else None)
        return None if whole is None else whole.cpu()


def is_cut(key: str, value: object) -> bool:
    """Whether an optimizer's state has a number for each weight."""
    return isinstance(value, Tensor) and key != COUNTER


def import_deepspeed(device: str) -> Any:
    """DeepSpeed, for this kind of device; it chooses one for the whole process."""
    os.environ.setdefault("DS_ACCELERATOR", device)
    deepspeed = import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message="`torch.distributed.all_gather_into_tensor`")
    chosen = deepspeed.accelerator.get_accelerator().device_name()
    if chosen != device:
        raise InputError(
            f"--strategy deepspeed: the training runs on {device}, and DeepSpeed chose {chosen}",
            f"DS_ACCELERATOR={device} in the environment",
        )
    if device == "cpu":
        # Each start would compile it, which takes minutes, and only inference uses it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
