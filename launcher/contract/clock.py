"""Time as an object, so that pure code and tests can be given another one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Code that waits or takes times is given this instead of the ``time`` module."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; only differences mean something."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump, so never used to measure or to time out."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Blocks for ``duration_s`` seconds."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)
