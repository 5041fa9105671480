"""QAdam: Adam whose variance is frozen after a warm-up, and whose momentum is sent compressed.

H. Tang et al. 2021, "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
Convergence Speed", algorithm 1; Bagua's QAdam is the same with 8 bits and without error feedback.
Adam on the mean gradient for T steps; after that, with v = v_T:

    m_i = beta1 * m + (1 - beta1) * g_i              on each rank i
    m   = Q( mean_i Q(m_i + e_i) + e' )              and what Q leaves out becomes e_i and e'
    x   = x - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^T)) + eps)

Elements with v = 0, which never had a gradient, stay as they are: the noise of Q would be divided
by eps (DeepSpeed's 1-bit Adam asks for a mask for the same reason).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from fabric_train.communication.compression import CompressedMean, MinMaxUInt8, OneBit
from fabric_train.communication.mean import average_gradients, fill_gradients

Bits = Literal[8, 1]


class QAdamSteps:
    """Steps of an Adam or AdamW over all ranks; use it in place of ``optimizer.step``.

    Raises ValueError for another optimizer, or one with ``amsgrad`` or ``maximize``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        warmup_steps: int,
        bits: Bits = 8,
        error_feedback: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(optimizer, Adam | AdamW):
            raise ValueError(f"QAdam takes Adam or AdamW, not {type(optimizer).__name__}")
        if any(each["amsgrad"] or each["maximize"] for each in optimizer.param_groups):
            raise ValueError("QAdam takes Adam without amsgrad and maximize")
        self.optimizer, self.warmup_steps = optimizer, warmup_steps
        self.bits, self.error_feedback = bits, error_feedback
        self._group = group
        self._steps: int | None = None
        self.frozen_at: int | None = None
        """The step T whose variance is used; None while warming up."""
        self.mean: CompressedMean | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates, in its order."""
        return [
            each
            for settings in self.optimizer.param_groups
            for each in settings["params"]
            if each.requires_grad
        ]

    @property
    def steps(self) -> int:
        """Steps of the optimizer so far, those of earlier starts included."""
        if self._steps is None:
            counts = (self.optimizer.state.get(each, {}).get("step") for each in self.parameters)
            self._steps = max((int(each) for each in counts if each is not None), default=0)
        return self._steps

    @property
    def is_warming_up(self) -> bool:
        """Whether the next step is plain Adam on the mean gradient."""
        return self.steps < self.warmup_steps

    def average_gradients(self) -> None:
        """While warming up, replaces the gradients by their mean; afterwards does nothing."""
        if self.is_warming_up:
            average_gradients(self.parameters, group=self._group)

    @property
    def ranks(self) -> int:
        """The number of ranks; 1 without a process group."""
        return dist.get_world_size(self._group) if dist.is_initialized() else 1

    def step(self) -> None:
        """One step on this rank's gradients; all ranks must call it."""
        steps = self.steps
        if self.is_warming_up:
            self.optimizer.step()
        else:
            self._step_frozen(steps)
        self._steps = steps + 1

    def forget(self) -> None:
        """Drops its own state; call it after another state is loaded into the optimizer."""
        self._steps = self.frozen_at = self.mean = None

    def make_mean(self) -> CompressedMean:
        """The compressed mean of the momentum, made at its first use."""
        if self.mean is None:
            self.mean = CompressedMean(
                MinMaxUInt8() if self.bits == 8 else OneBit(),
                self.parameters,
                error_feedback=self.error_feedback,
                group=self._group,
            )
        return self.mean

    @torch.no_grad()
    def _step_frozen(self, steps: int) -> None:
        if self.frozen_at is None:
            self.frozen_at = steps
        fill_gradients(self.parameters)
        for settings in self.optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.requires_grad:
                    add_to_momentum(parameter, self.optimizer.state[parameter], settings)
        momenta = [self.optimizer.state[each]["exp_avg"] for each in self.parameters]
        if self.ranks > 1:
            self.make_mean()(momenta)
        for settings in self.optimizer.param_groups:
            self._update(settings)

    def _update(self, settings: dict[str, Any]) -> None:
        assert self.frozen_at is not None
        lr, (beta1, beta2) = float(settings["lr"]), settings["betas"]
        for parameter in settings["params"]:
            if not parameter.requires_grad:
                continue
            state = self.optimizer.state[parameter]
            state["step"] += 1
            momentum, variance = state["exp_avg"], state["exp_avg_sq"]
            momentum.mul_(variance != 0)
            if is_decoupled(self.optimizer, settings):
                parameter.mul_(1 - lr * settings["weight_decay"])
            scale = (variance / (1 - beta2**self.frozen_at)).sqrt_().add_(settings["eps"])
            rate = lr / (1 - beta1 ** float(self.steps + 1))
            parameter.addcdiv_(momentum, scale, value=-rate)


def add_to_momentum(
    parameter: nn.Parameter, state: dict[str, Tensor], settings: dict[str, Any]
) -> None:
    """Adam's update of the momentum, with this rank's gradient."""
    if not state:  # a parameter without a gradient in the whole warm-up
        state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter)}
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    gradient = parameter.grad
    assert gradient is not None
    if settings["weight_decay"] and not settings.get("decoupled_weight_decay"):
        gradient = gradient.add(parameter, alpha=settings["weight_decay"])
    state["exp_avg"].lerp_(gradient, 1 - settings["betas"][0])


def is_decoupled(optimizer: Optimizer, settings: dict[str, Any]) -> bool:
    """Whether weight decay is AdamW's."""
    return bool(settings.get("decoupled_weight_decay", isinstance(optimizer, AdamW)))
