"""Time as an object, so that pure code and tests can be given another one."""

from __future__ import annotations

import threading
import time
from typing import Protocol

STOOD_S = 3.0
"""A process that did not look at the clock for this long did not run: it was stopped, as by Ctrl-Z,
or the machine had no processor for it."""
TICK_S = 0.5


class Clock(Protocol):
    """Code that waits or takes times is given this instead of the ``time`` module."""

    stood_s: float
    """How long this process did not run in all, as far as ``monotonic`` leaves that out."""

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

    stood_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class AwakeClock(SystemClock):
    """The same for a process that measures how long others are silent: ``monotonic`` stands while
    the process does not run, as after Ctrl-Z: what others said then was not heard."""

    def __init__(self) -> None:
        self._ran_at, self._lock = time.monotonic(), threading.Lock()
        threading.Thread(target=self._keep_watch, name="awake", daemon=True).start()

    def _keep_watch(self) -> None:
        # Ended by the end of the process: nothing waits for it.
        while True:
            time.sleep(TICK_S)
            self.monotonic()

    def monotonic(self) -> float:
        with self._lock:
            now = time.monotonic()
            if now - self._ran_at > STOOD_S:
                self.stood_s += now - self._ran_at
            self._ran_at = now
            return now - self.stood_s
