"""Waits for what a process does, and a clock for what need not be waited for.

A busy machine takes its time, so the limit is pytest's own.
"""

import time
from collections.abc import Callable

LIMIT_S = 240.0
"""Below pytest's limit of a test, so that one that fails still ends what it started."""


def wait_until(
    condition: Callable[[], object], what: object = "", *, limit_s: float = LIMIT_S
) -> None:
    """Until the condition holds; fails with ``what``, or what that returns, if it never does."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {limit_s:g} s: {told or condition}")
        time.sleep(0.02)


class StoppedClock:
    """Time that moves only by what is slept; ``on_sleep`` is told each time."""

    stood_s = 0.0

    def __init__(self, now: float = 0.0, on_sleep: Callable[[float], object] | None = None) -> None:
        self.now, self.on_sleep = now, on_sleep

    def monotonic(self) -> float:
        return self.now

    __call__ = monotonic

    def wall(self) -> float:
        return self.now

    def sleep(self, duration_s: float) -> None:
        self.now += duration_s
        if self.on_sleep:
            self.on_sleep(self.now)
