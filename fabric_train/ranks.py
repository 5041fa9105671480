"""What the ranks of a training tell each other, outside of its own collectives; numbers that they
agree on while they compute a step, such as a stop; rank 0 first for downloads."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from fabric_train.errors import InputError

T = TypeVar("T")
FORM_LIMIT_S = 30.0
"""How long the ranks of a group may take to connect, once all of them have begun."""
DOWNLOAD_LIMIT_S = 86_400.0
"""How long ranks wait for the one that downloads."""
AGREE_LIMIT_S = 1800.0
"""torch's own limit of a collective with gloo."""
MOST_PROPOSALS = 8
"""At least one in so many proposals is exchanged, because a step may suddenly take long."""


class Ranks:
    """All ranks of the world; without a process group, or without a limit, this rank alone."""

    def __init__(self, timeout_s: float | None = None) -> None:
        """``timeout_s``: the limit of each exchange between ranks, in seconds."""
        self._timeout_s, self.size = timeout_s, 1
        if dist.is_initialized() and timeout_s is not None:
            self.size = dist.get_world_size()
        self.leads = self.size == 1 or dist.get_rank() == 0
        """Whether this is rank 0."""

    @cached_property
    def group(self) -> dist.ProcessGroup | None:
        """A group of their own: saves in the background must not mix with the training.

        It is made in the first call that all ranks make: rank 0 may need ``leads`` alone.
        """
        return None if self._timeout_s is None or self.size == 1 else new_cpu_group(self._timeout_s)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks; all ranks must call it."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def gather_done(self, act: Callable[[], T]) -> list[T]:
        """What ``act`` returns on every rank; an error on one rank is raised on all.

        All ranks must call it. Otherwise the others would wait for the rank that failed.
        """
        own_result = attempt(act)
        results = self.gather(as_sent(own_result))
        for result in results:
            if isinstance(result, Exception):
                raise own_result if isinstance(own_result, Exception) else result
        return results  # type: ignore[return-value]

    def merge(self, values: Mapping[str, T]) -> dict[str, T]:
        """All ranks' values by name; all ranks must call it."""
        return {name: value for part in self.gather(values) for name, value in part.items()}

    def from_rank_zero(self, decide: Callable[[], T]) -> T:
        """What ``decide`` returns or raises on rank 0, on all ranks; all ranks must call it.

        The other ranks raise the error too, because they would wait for rank 0 otherwise.
        """
        if self.group is None:
            return decide()
        own_result = attempt(decide) if self.leads else None
        sent: list[Any] = [as_sent(own_result)]
        dist.broadcast_object_list(sent, src=0, group=self.group)
        result: Any = own_result if self.leads else sent[0]
        if isinstance(result, InputError) and not self.leads:
            raise InputError(f"rank 0 refuses: {result.what}", result.fix)
        if isinstance(result, Exception):
            raise result
        value: T = result
        return value

    def spread(self, read_tensors: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Reads tensors on rank 0 and returns them on all ranks. Call it on all ranks; blocks."""
        if self.group is None:
            return dict(read_tensors())
        read_here: dict[str, Tensor] = {}

        def describe() -> dict[str, tuple[torch.Size, torch.dtype]]:
            read_here.update(read_tensors())
            return {name: (tensor.shape, tensor.dtype) for name, tensor in read_here.items()}

        known = self.from_rank_zero(describe)
        tensors = read_here or {
            name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in known.items()
        }
        for tensor in tensors.values():
            dist.broadcast(tensor, src=0, group=self.group)
        return tensors

    def check_shared(self, path: Path) -> None:
        """Raises InputError, on all ranks, unless all see ``path``, which rank 0 has made.

        Raises OSError, on all ranks, if the storage of one fails.
        """
        exists_for = self.gather_done(path.exists)
        if not all(exists_for):
            raise InputError(
                f"rank {exists_for.index(False)} does not see {path}, but all ranks read and write "
                "parts of the state",
                "set checkpoint_dir to a folder that all nodes share",
            )


@contextmanager
def rank_zero_first(*, local: bool = True, limit_s: float = DOWNLOAD_LIMIT_S) -> Iterator[None]:
    """Runs the block on one rank first, of each node or (not ``local``) of all, then on the others.

    For downloads into a folder that they share: the others find what the first has fetched. If the
    first fails, all raise its error, so that none waits for it. All ranks must enter it; the others
    wait for at most ``limit_s``. Without a process group the block just runs.
    """
    ranks = Ranks(limit_s)
    leads = ranks.leads or (local and os.environ.get("LOCAL_RANK") == "0")
    failed: Exception | None = None
    if leads:
        try:
            yield
        except Exception as error:
            failed = error
    for outcome in ranks.gather(as_sent(failed)):
        if outcome is not None:
            raise failed or outcome
    if not leads:
        yield


def new_cpu_group(timeout_s: float) -> dist.ProcessGroup:
    """A gloo group of all ranks; all must call it. ``timeout_s``: the limit of its collectives.

    A rank that waits to connect to one that has died is woken only by the limit. So the limit for
    forming the group, ``FORM_LIMIT_S``, is short: all ranks are there when it begins.
    """
    here = torch.zeros(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(here)
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=FORM_LIMIT_S))
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    assert isinstance(group, dist.ProcessGroup)
    return group


def attempt(act: Callable[[], T]) -> T | Exception:
    """What ``act`` returns, or the exception that it raises."""
    try:
        return act()
    except Exception as error:
        return error


def as_sent(value: T | Exception) -> T | Exception:
    """The value; but an exception that pickle cannot copy becomes a RuntimeError with its text.

    Such as the exception of a download, which holds the server's answer.
    """
    if not isinstance(value, Exception):
        return value
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return RuntimeError(f"{type(value).__name__}: {value}")
    return value


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
        self._group = new_cpu_group(AGREE_LIMIT_S) if many else None
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
