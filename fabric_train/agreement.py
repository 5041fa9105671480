"""Lets all ranks agree on small numbers while they compute a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Agreement:
    """Tells every rank the highest of all ranks' numbers, one step later.

    The exchange runs beside the step, between ``propose`` and ``settle``, on its own CPU group, so
    no rank waits for it. All ranks must make one and call it equally often.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        many = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if many else None
        self._numbers = torch.zeros(size, dtype=torch.int64)
        self._work: dist.Work | None = None

    def propose(self, wishes: Sequence[int]) -> None:
        """Starts an exchange; ``settle`` must have ended the one before."""
        self._numbers = torch.tensor(wishes, dtype=torch.int64)
        if self._group is not None:
            self._work = dist.all_reduce(
                self._numbers, dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def settle(self) -> tuple[int, ...]:
        """Ends the exchange and gives the highest numbers; zeros if nothing was proposed."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        agreed, self._numbers = self._numbers, torch.zeros(self._size, dtype=torch.int64)
        return tuple(agreed.tolist())
