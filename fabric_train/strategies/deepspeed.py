"""deepspeed: the gradients and the optimizer's state in parts, by DeepSpeed's ZeRO, if installed.

## deepspeed

What it does: every process holds all weights. The optimizer's state, and with stage 2 the
gradients, are cut over the processes; each updates its part of the weights, and all gather them.
Weights and losses are those of one process up to rounding. DeepSpeed's engine makes the steps; it
was tried with DeepSpeed 0.19.8.

Options: ``stage`` (2), ``offload``. ``fsdp`` is ZeRO-3, and within torch.

Memory of a process, for P weights of 4 bytes under AdamW and W processes: 4 P for the weights,
12 P / W for its part of moments and a second copy of its weights, gradients of 4 P / W (stage 1:
4 P), and a message of up to 128 MiB. Rank 0 holds all moments in host memory while a checkpoint is
copied, and every process does so while one is loaded.

Bytes that a process sends in a step, with m micro-batches (those of the process with most of them):
(W - 1) / W * 4 P * (2 m + 1) with stage 2, which adds gradients up after each micro-batch;
(W - 1) / W * 4 P * 3 with stage 1.

A checkpoint holds the whole model and optimizer state under the model's names, so any number of
processes and any other strategy can load it, and this one theirs. DeepSpeed's own are not written.

Not supported: ``reduction: exact``; weights that are not float32; optimizers that look at a whole
weight at once, such as Adafactor or LAMB. Adam, SGD and others that update each number by itself
work. A weight without a gradient is updated as with a gradient of zeros.
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
"""Elements of the largest message; with DeepSpeed's default one message takes 2 GB."""


@dataclass
class DeepSpeed(Strategy):
    """DeepSpeed's ZeRO, where the package is installed (tried with 0.19.8): every process holds
    all weights, and a part of the optimizer's state and gradients. For ZeRO-3 take ``fsdp``.
    Weights that are not float32 are refused. DeepSpeed's own checkpoints are not written.

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
        from fabric_train.launch.fabric import build_ddp

        # The offloaded state lies in host memory, and gloo gathers it there.
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
                    f"--strategy deepspeed needs float32 weights, but {name} is {weight.dtype}",
                    "float32 weights, with --precision bf16-mixed; or --strategy ddp",
                )
        super().setup(model, build_optimizer, place, virtual_shards=virtual_shards)
        self.engine = import_deepspeed(place.device.type).initialize(
            model=model, optimizer=build_optimizer(model.parameters()), config=self.plan_config()
        )[0]
        self.model = self.engine
        return self.model, self.optimizer

    def plan_config(self) -> dict[str, Any]:
        """The ``config`` for ``deepspeed.initialize``."""
        elements = sum(weight.numel() for weight in self.bare.parameters())
        bucket = min(BUCKET_ELEMENTS, elements + elements % 2)
        return {
            "train_micro_batch_size_per_gpu": 1,  # only for its own statistics
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": self.stage,
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
                "offload_optimizer": {"device": "cpu" if self.offload else "none"},
            },
            # Otherwise the engine ends the program's autocast. Gradients are averaged in 32 bits.
            "torch_autocast": {
                "enabled": self.precision == "bf16-mixed",
                "dtype": "bfloat16",
                "lower_precision_safe_modules": [],
            },
        }

    # -- a step ---------------------------------------------------------------------------------

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        share = weight * self.replicas / self.virtual_shards
        self.engine.backward(loss * share, scale_wrt_gas=False)

    def clip(self, max_norm: float) -> None:
        """Has ``step`` scale the whole model's gradient down to a norm of at most ``max_norm``."""
        self.engine.optimizer.clip_grad = max_norm

    def step(self, number: int) -> None:
        zero = self.engine.optimizer
        for group, options in zip(
            zero.optimizer.param_groups, self.optimizer.param_groups, strict=True
        ):
            group.update({key: value for key, value in options.items() if key != "params"})
        self.engine.step()
        zero.clip_grad = 0.0
        if zero.overflow:
            # DeepSpeed skips such a step; a training in one process would not.
            raise DivergedError(
                f"a gradient is not finite in step {number + 1}. "
                "Lower the learning rate (--lr) or warm up longer (--warmup_steps)"
            )
        self.steps = number + 1

    # -- checkpoints and tests ------------------------------------------------------------------

    def before_save(self) -> None:
        """Gathers the optimizer's state on rank 0, which writes it."""
        for weights, part in self._groups():
            for key, value in self.engine.optimizer.optimizer.state[part].items():
                is_cut = isinstance(value, Tensor) and value.shape == part.shape
                whole = self._gather(value) if is_cut else None
                for weight, offset in weights if self.place.rank == 0 else ():
                    self.optimizer.state[weight][key] = (
                        value if whole is None else whole[offset:][: weight.numel()].view_as(weight)
                    )

    def after_save(self) -> None:
        self.optimizer.state.clear()

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        """Takes this process' part of the loaded weights and optimizer state."""
        self.engine.optimizer.refresh_fp32_params()
        for weights, part in self._groups():
            loaded = [self.optimizer.state.get(weight, {}) for weight, _ in weights]
            self.engine.optimizer.optimizer.state[part] = {
                key: self._cut([state[key] for state in loaded], weights, part) for key in loaded[0]
            }
        self.optimizer.state.clear()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()

    def _groups(self) -> Iterator[tuple[list[tuple[Tensor, int]], Tensor]]:
        """Each group's weights with their places in one flat tensor, and this process' part of it.

        The parts are equally long, and the last may end with padding.
        """
        zero = self.engine.optimizer
        flats, parts = zero.bit16_groups_flat, zero.single_partition_of_fp32_groups
        for weights, flat, part in zip(zero.bit16_groups, flats, parts, strict=True):
            yield [(each, each.storage_offset() - flat.storage_offset()) for each in weights], part

    def _gather(self, part: Tensor) -> Tensor | None:
        """All processes' parts one after the other, in host memory; only on rank 0."""
        leads, size = self.place.rank == 0, self.place.world_size
        whole = part.new_empty(size * len(part)) if leads else None
        dist.gather(part, list(whole.chunk(size)) if whole is not None else None)
        return None if whole is None else whole.cpu()

    def _cut(self, values: list[Any], weights: list[tuple[Tensor, int]], part: Tensor) -> Any:
        """This process' part of one value of the weights' states; a counter stays whole."""
        first, size = values[0], self.place.world_size
        if not isinstance(first, Tensor):
            return first
        if [value.shape for value in values] != [weight.shape for weight, _ in weights]:
            # Counters lie on the host or beside the weights.
            return first if first.device.type == "cpu" else first.to(part.device)
        whole = first.new_zeros(size * len(part))
        for value, (_, offset) in zip(values, weights, strict=True):
            whole[offset:][: value.numel()] = value.flatten()
        return whole.chunk(size)[self.place.rank].to(part.device, copy=True)


def import_deepspeed(device: str) -> Any:
    """Imports DeepSpeed; raises InputError if its device for this process is not ``device``."""
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
        # Only inference uses this extension, and each start would compile it for minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
