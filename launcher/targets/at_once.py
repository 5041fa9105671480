"""One action on many nodes at once, each in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

HEARS_S = 0.2
"""How long a signal may go unheard."""
MOST = 64
"""More would only compete for this machine's processors."""


def at_once(
    act: Callable[[Item], Result], items: Iterable[Item], *, may_leave: bool = False
) -> list[Result]:
    """The results in order. Raises the first error, once all have ended; else as ``settle``."""
    # Ended by nobody: all are done.
    return [future.result() for future in settle(act, items, may_leave=may_leave)]


def settle(
    act: Callable[[Item], Result], items: Iterable[Item], *, may_leave: bool = False
) -> list[Future[Result]]:
    """In order, all done: each has a result or an error.

    ``may_leave``: Ctrl-C waits for no action that is under way, and no other one begins.
    """
    pool = ThreadPoolExecutor(max_workers=MOST)
    try:
        futures = [pool.submit(act, item) for item in items]
        # In turns: a signal that comes just before a wait begins does not end it. Python notes it,
        # and calls the handler after the wait.
        while wait(futures, timeout=HEARS_S).not_done:
            pass
    finally:
        pool.shutdown(wait=not may_leave, cancel_futures=may_leave)
    return futures
