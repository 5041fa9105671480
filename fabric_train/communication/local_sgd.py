"""Local SGD: each rank makes H optimizer steps alone, then all weights become their mean; DiLoCo,
in which the sum of the local steps is the gradient of an outer optimizer.

    meeting = Averaging(model, every=8)  # or OuterSteps(model, every=500)
    for number in range(steps):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        meeting.after_step(number)

Sources: S. U. Stich 2019, "Local SGD Converges Fast and Communicates Little"; T. Lin et al. 2018,
"Don't Use Large Mini-Batches, Use Local SGD", for the start with averaged gradients (post-local
SGD). Ranks that saw more samples weigh more in the mean, as in H. B. McMahan et al. 2017,
"Communication-Efficient Learning of Deep Networks from Decentralized Data". A. Douillard et al.
2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1 with
Nesterov's momentum in the outer optimizer, which the paper found best. With one rank alone DiLoCo
still does the outer step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.communication.mean import average, find_statistics, find_weights


class Averaging:
    """The mean of all ranks' weights after each ``every`` local steps.

    ``after``: how many steps of the training come before the first local one; in them the loop
    averages gradients (``mean.average_gradients``), and the weights stay equal. ``share``: this
    rank's weight in the mean, see ``mean.average``. The model's optimizer stays each rank's own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int,
        after: int = 0,
        share: float | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: the ranks cannot meet more often than at each step")
        self.model = model
        self.every, self.after = every, after
        self.share, self.group = share, group

    def is_local(self, number: int) -> bool:
        """Whether a rank makes this step alone; ``number`` counts the steps before it."""
        return number >= self.after

    def is_last(self, number: int) -> bool:
        """Whether the ranks meet after this step."""
        return self.is_local(number) and (number + 1 - self.after) % self.every == 0

    def after_step(self, number: int) -> bool:
        """Lets the ranks meet if it is time, and returns whether they did; all ranks must call it.

        ``number`` counts the optimizer steps before this one, over all restarts.
        """
        if not self.is_last(number):
            return False
        self.meet()
        return True

    def meet(self) -> None:
        """Makes all ranks' weights and statistics equal; blocks, and sends each weight once."""
        drifted = find_weights(self.model) | find_statistics(self.model)
        average(drifted.values(), share=self.share, group=self.group)

    def restart(self) -> None:
        """Call it after weights, equal on all ranks, are loaded into the model."""


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
