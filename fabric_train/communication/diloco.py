"""DiLoCo: local steps by one optimizer, and their sum as the gradient of a second, outer one.

    meeting = OuterSteps(model, every=500)
    for number in range(steps):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        meeting.after_step(number)

Source: A. Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language
Models", algorithm 1 with Nesterov's momentum in the outer optimizer, which the paper found best.
With one rank alone it still does the outer step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.communication.local_sgd import Averaging
from fabric_train.communication.mean import average, find_statistics, find_weights


class OuterSteps(Averaging):
    """Makes an outer step after each ``every`` local steps.

    ``anchor`` is the weights at the last meeting, and D the mean of (anchor - weights) over the
    ranks: velocity <- momentum * velocity + D, anchor <- anchor - lr * (D + momentum * velocity),
    and all weights become the anchor. Takes memory for anchor and velocity: twice the weights.
    Arguments as for ``Averaging``. Make it when the ranks' weights are equal.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int,
        lr: float = 0.7,
        momentum: float = 0.9,
        after: int = 0,
        share: float | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(model, every=every, after=after, share=share, group=group)
        self.lr, self.momentum = lr, momentum
        self.weights = find_weights(model)
        self.anchor: dict[str, Tensor] = {}
        self.velocity: dict[str, Tensor] = {}
        self.restart()

    def restart(self) -> None:
        """Starts over from the present weights, equal on all ranks, without velocity."""
        self.anchor = {name: weight.clone() for name, weight in self.weights.items()}
        self.velocity = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}

    def after_step(self, number: int) -> bool:
        """As ``Averaging.after_step``."""
        if number + 1 == self.after:
            # Until now all ranks moved together; from here on the anchor stays behind.
            for name, weight in self.weights.items():
                self.anchor[name].copy_(weight)
        return super().after_step(number)

    def meet(self) -> None:
        """The outer step; blocks, and sends each weight once."""
        average(find_statistics(self.model).values(), share=self.share, group=self.group)
        # Overwrites the weights, which are no longer needed, with what each rank has moved by.
        for name, weight in self.weights.items():
            weight.neg_().add_(self.anchor[name])
        average(self.weights.values(), share=self.share, group=self.group)
        for name, weight in self.weights.items():
            velocity, anchor = self.velocity[name], self.anchor[name]
            velocity.mul_(self.momentum).add_(weight)
            anchor.sub_(weight.add_(velocity, alpha=self.momentum), alpha=self.lr)
            weight.copy_(anchor)
