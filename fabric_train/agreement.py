"""Lets all ranks agree on small numbers while they compute a step, such as a stop or a due
checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from fabric_train.ranks import new_cpu_group

TIMEOUT_S = 1800.0
"""torch's own limit of a collective with gloo."""
MOST_PROPOSALS = 8
"""At least one in so many proposals is exchanged, because a step may suddenly take long."""


class Agreement:
    """Tells every rank the highest of all ranks' numbers, one step after their exchange began.

    The exchange runs beside the step, between ``propose`` and ``settle``, on its own CPU group, so
    no rank waits for it. All ranks must make an Agreement and call it equally often.

    An exchange still takes processor time: a twentieth of a 25 ms step with four processes. So
    proposals within about ``pause_s`` of the last exchange are dropped, at most seven in a row: a
    caller has to propose a lasting wish in every step.
    """

    def __init__(
        self, size: int, *, pause_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_s, self._clock = pause_s, clock
        many = dist.is_initialized() and dist.get_world_size() > 1
        self._group = new_cpu_group(TIMEOUT_S) if many else None
        self._nothing = self._agreed = (0,) * size
        self._exchange: tuple[dist.Work, torch.Tensor] | None = None
        self._proposals, self._exchanged_every = 0, 1
        self._exchanged_at = clock()

    def propose(self, wishes: Sequence[int]) -> None:
        """Starts an exchange or drops the wishes; ``settle`` must have ended the last exchange."""
        if self._group is None:
            self._agreed = tuple(wishes)
            return
        self._proposals += 1
        if self._proposals < self._exchanged_every:
            return
        # All ranks drop the same number of proposals: the lowest that any rank planned.
        numbers = torch.tensor([*wishes, -self._plan_next()], dtype=torch.int64)
        work = dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._exchange = work, numbers

    def settle(self) -> tuple[int, ...]:
        """Ends the exchange and gives the highest numbers; zeros if nothing was proposed."""
        if self._exchange is not None:
            (work, numbers), self._exchange = self._exchange, None
            work.wait()
            *highest, every = numbers.tolist()
            self._agreed, self._exchanged_every = tuple(highest), -every
        agreed, self._agreed = self._agreed, self._nothing
        return agreed

    def hold_on_all(self, holds: bool) -> bool:
        """Whether ``holds`` is true on all ranks; blocks, and all ranks must call it."""
        if self._group is None:
            return holds
        answer = torch.tensor(int(holds))
        dist.all_reduce(answer, dist.ReduceOp.MIN, group=self._group)
        return bool(answer)

    def _plan_next(self) -> int:
        """After how many proposals this rank wants the next exchange."""
        now = self._clock()
        proposals_in_pause = self._pause_s * self._proposals / max(now - self._exchanged_at, 1e-9)
        self._proposals, self._exchanged_at = 0, now
        return max(1, min(MOST_PROPOSALS, int(proposals_in_pause)))
