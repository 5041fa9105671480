"""How a worker ended: what agents write of it, and what the launcher tells of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.contract.errors import ExitCode, name_ending

COLLATERAL = re.compile(
    r"closed by peer|reset by peer|refused|Broken pipe|DistNetworkError|DistStoreError"
    r"|DistBackendError|Timed out waiting|recvValue failed|sendBytes failed"
    r"|remote process exited|ncclRemoteError|Connection closed"
)
"""What a worker says when another one is gone. It is not the cause."""

_ASKED = re.compile(r"SIGTERM|SignalException|got signal: 15")
_LEFT = frozenset({int(ExitCode.PREEMPTED), int(ExitCode.INTERRUPTED)})


@dataclass(frozen=True, kw_only=True)
class WorkerEnd:
    """How one worker ended.

    ``exit_code`` is negative for a signal; ``at`` is in seconds since the epoch; ``cause`` is exit,
    signal, hang, out-of-memory, disk-full or terminated; ``log`` is relative to RUN_DIR.
    """

    attempt: int
    rank: int
    local_rank: int
    exit_code: int
    at: float
    cause: str
    message: str
    log: str
    steps: int = 0

    @property
    def is_collateral(self) -> bool:
        """Whether it only follows from another worker's failure."""
        return self.cause == "terminated" or bool(COLLATERAL.search(self.message))

    @property
    def has_left(self) -> bool:
        """Whether it says itself that it was asked to leave."""
        return self.exit_code in _LEFT


def sort_ends(ends: Iterable[WorkerEnd]) -> tuple[WorkerEnd, ...]:
    """Causes before collateral, those ended by the agent last, then by time and rank."""
    order = lambda end: (end.is_collateral, end.cause == "terminated", end.at, end.rank)  # noqa: E731
    return tuple(sorted(ends, key=order))


def is_own_failure(message: str) -> bool:
    """Whether an exception speaks neither of another worker nor of being asked to end."""
    return bool(message) and not COLLATERAL.search(message) and not _ASKED.search(message)


def name_cause(
    exit_code: int,
    *,
    terminated: bool,
    out_of_memory: bool = False,
    disk_full: bool = False,
) -> str:
    """One word for why a worker ended that did not hang."""
    if terminated:
        return "terminated"
    if out_of_memory:
        return "out-of-memory"
    if disk_full:
        return "disk-full"
    return "signal" if exit_code < 0 else "exit"


def describe(end: WorkerEnd) -> str:
    """One worker's ending in words."""
    how = name_ending(end.exit_code)
    if end.cause == "hang":
        how = "it hung"
    if end.cause == "out-of-memory":
        how = "out of memory"
    return f"rank {end.rank}: {how}" + (f" ({end.message})" if end.message else "")
