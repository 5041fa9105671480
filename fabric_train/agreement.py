"""What all ranks want, agreed on at one step, for next to nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Agreement:
    """A few small numbers for which all ranks learn the highest of anybody's, a step later.

    The exchange runs beside the step between ``propose`` and ``settle``, on a CPU group of its own:
    nobody waits for it, and nobody decides alone. All ranks must make one and call it as often.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        many = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo") if many else None
        self._numbers = torch.zeros(size, dtype=torch.int64)
        self._work: dist.Work | None = None

    def propose(self, wishes: Sequence[int]) -> None:
        """Begins an exchange; the one before must be settled."""
        self._numbers = torch.tensor(wishes, dtype=torch.int64)
        if self._group is not None:
            self._work = dist.all_reduce(
                self._numbers, dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def settle(self) -> tuple[int, ...]:
        """The highest of what all ranks proposed last, zeros at first; leaves nothing under way."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        agreed, self._numbers = self._numbers, torch.zeros(self._size, dtype=torch.int64)
        return tuple(agreed.tolist())
