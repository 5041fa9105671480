"""The machine that figures were taken on, in words that do not name it; above which load no rows
are recorded."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata

MAX_LOAD = 1.0
"""Above it, other work has the cores too: rows that are taken then are not recorded."""
WAIT_S = 300.0
"""For a load that this program has made itself: from 10 it falls below 1 in 140 s."""
POLL_S = 5.0


def read_machine() -> str:
    """Cores and versions: what somebody needs to compare figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join(
        [
            f"{cores} cores ({platform.machine()}, {platform.system()})",
            f"Python {platform.python_version()}",
            *(f"{name} {version}" for name in ("torch", "torchx") if (version := _version(name))),
        ]
    )


def read_load() -> float:
    """How many processes have wanted a core, averaged over the last minute."""
    return os.getloadavg()[0]


def wait_until_quiet(
    read: Callable[[], float] = read_load,
    sleep: Callable[[float], None] = time.sleep,
    limit_s: float = WAIT_S,
) -> float:
    """The load, once it is ``MAX_LOAD`` at most, or after ``limit_s`` whatever it is then."""
    passed_s = 0.0
    while (load := read()) > MAX_LOAD and passed_s < limit_s:
        sleep(POLL_S)
        passed_s += POLL_S
    return load


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
