"""Asynchronous model averaging: ranks train by themselves, and their weights meet in between.

S. Gan et al. 2021, "BAGUA", and Bagua's ``AsyncModelAverageAlgorithm``. A rank takes a copy c_i of
its weights, all ranks' copies are averaged beside the training, and when the mean arrives, the rank
adds the difference between mean and copy to the weights that it has by then:

    x_i = x_i + mean_j c_j - c_i

so that the steps in between are kept, and the mean of all ranks' weights does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fabric_train.communication.mean import flatten, write_back


class AsyncAverage:
    """Averages weights in the background; all ranks make one, over the same weights.

    Call ``after_step`` after every step of the optimizer, and ``settle`` where all ranks are at the
    same step: before a checkpoint, a test, and the end. A rank that waits for a peer for
    ``timeout_s`` raises RuntimeError in its next call, as it does for a peer that has died.

    It has gloo groups of its own, so that its messages never mix with the training's; weights on a
    GPU are copied to the host. Takes two copies of the weights.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        interval_s: float = 0.5,
        timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._interval_s, self._clock = list(weights), interval_s, clock
        self._ranks = dist.get_world_size()
        limit = timedelta(seconds=timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=limit)
        self._control = dist.new_group(backend="gloo", timeout=limit)
        self._work: dist.Work | None = None
        self._copy = self._sum = torch.empty(0)
        self._begun_at = clock()
        self.begun = 0
        """Averages that this rank has begun. The next one begins when all ranks have begun the one
        before, so two ranks' numbers differ by one at most."""

    def after_step(self) -> None:
        """Takes an average that has arrived, and begins the next one when it is due.

        Never waits for a peer.
        """
        if self._work is not None and self._work.is_completed():
            self._apply_average()
        if self._work is None and self._clock() - self._begun_at >= self._interval_s:
            self._begin()

    def settle(self) -> None:
        """Finishes every average that a rank has begun. All ranks must call it; blocks."""
        most = torch.tensor([self.begun])
        # Not over the group of the averages, where a rank may be one message behind.
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._control)
        if self._work is not None:
            self._apply_average()
        if self.begun < int(most):
            self._begin()
            self._apply_average()

    def _begin(self) -> None:
        self._copy = flatten(self._weights).cpu()
        self._sum = self._copy.clone()
        self._work = dist.all_reduce(self._sum, group=self._group, async_op=True)
        self._begun_at = self._clock()
        self.begun += 1

    def _apply_average(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        work.wait()
        change = self._sum.div_(self._ranks).sub_(self._copy)
        device = self._weights[0].device
        write_back(flatten(self._weights).add_(change.to(device)), self._weights)
        self._copy = self._sum = torch.empty(0)
