"""Waits for what a process does. A busy machine takes its time, so the limit is pytest's own."""

from __future__ import annotations

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
