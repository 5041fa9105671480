"""One action on many nodes at once, each in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

HEARS_S = 0.2
"""How long a signal may wait for its handler."""
MOST = 64
"""More threads would only compete for this machine's processors."""


def at_once(
    act: Callable[[Item], Result], items: Iterable[Item], *, may_leave: bool = False
) -> list[Result]:
    """As ``settle``, but returns the results. Raises the first error, once all have ended."""
    # Ended by nobody: all futures are done.
    return [future.result() for future in settle(act, items, may_leave=may_leave)]


def settle(
    act: Callable[[Item], Result], items: Iterable[Item], *, may_leave: bool = False
) -> list[Future[Result]]:
    """Acts on all items; returns their futures in order, each with a result or an error.

    ``may_leave``: on Ctrl-C, it waits for no running action, and begins no other.
    """
    pool = ThreadPoolExecutor(max_workers=MOST)
    try:
        futures = [pool.submit(act, item) for item in items]
        # Wait in short turns: if a signal comes just before a wait begins, Python calls its handler
        # only after the wait.
        while wait(futures, timeout=HEARS_S).not_done:
            pass
    finally:
        pool.shutdown(wait=not may_leave, cancel_futures=may_leave)
    return futures
