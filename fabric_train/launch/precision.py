"""The number formats of a training: which a strategy takes, the scaled loss for float16, weights in
bfloat16.

P. Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.precision.amp import MixedPrecision
from lightning.fabric.plugins.precision.half import HalfPrecision
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from fabric_train.errors import InputError

if TYPE_CHECKING:
    from fabric_train.strategies.strategy import Strategy

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true"]


def set_precision(strategy: Strategy, precision: Precision, device: str) -> None:
    """Sets the strategy's precision; raises InputError if it does not train in that."""
    if precision not in strategy.precisions:
        raise InputError(
            f"--strategy {strategy.name} does not train in {precision}",
            f"--precision {' or '.join(sorted(strategy.precisions))}, or --strategy ddp",
        )
    strategy.precision = precision
    if precision == "16-mixed":
        strategy.scaler = LossScaler(device)


def build_fabric(
    precision: Precision, device: str, environment: ClusterEnvironment, **options: Any
) -> Fabric:
    """Fabric in this precision. By the name ``16-mixed`` alone it would use bfloat16 on a CPU."""
    if precision == "16-mixed":
        plugins: Any = [environment, MixedPrecision(precision, device)]
        return Fabric(accelerator=device, plugins=plugins, **options)
    return Fabric(accelerator=device, plugins=[environment], precision=precision, **options)


def convert_model(model: nn.Module, precision: Precision) -> nn.Module:
    """The model in bfloat16 for ``bf16-true``, in place; it casts the inputs that it gets."""
    if precision == "bf16-true":
        half = HalfPrecision(precision)
        half.convert_module(model)
        model.register_forward_pre_hook(lambda _, inputs: half.convert_input(inputs))
    return model


class LossScaler(GradScaler):
    """torch's GradScaler, except that all ranks skip the same steps, and that it counts them.

        strategy.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)  # before gradients are clipped
        strategy.step(number)

    A rank that holds a part of the weights sees its own part of the gradient only, so all ranks
    must call ``unscale_``.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._skipped: Tensor | int = 0

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients by the scale; blocks until all ranks know of an overflow."""
        super().unscale_(optimizer)
        overflows = list(self._found_inf_per_device(optimizer).values())
        for overflow in overflows:
            if dist.is_initialized():
                dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        # Added up on the device, because reading it would wait for the device.
        self._skipped = self._skipped + torch.stack(overflows).amax()

    def unscale_loss(self, loss: Tensor) -> Tensor:
        """The loss that ``scale`` was given in this step, here or on another rank."""
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(loss.device)
        assert self._scale is not None
        return loss / self._scale

    @property
    def skipped(self) -> int:
        """Steps skipped after an overflow, over all restarts; waits for the device."""
        return int(self._skipped)

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps of the scaler."""
        return {**self.state_dict(), "skipped": self.skipped}

    def load_json(self, values: Mapping[str, Any]) -> None:
        """The reverse of ``to_json``."""
        self.load_state_dict({name: value for name, value in values.items() if name != "skipped"})
        self._skipped = values["skipped"]
