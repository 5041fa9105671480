"""Describes the machine that figures were taken on, without anything that names it."""

from __future__ import annotations

import os
import platform
from importlib import metadata


def read_machine() -> str:
    """Cores, versions and how busy the machine was: what somebody needs to compare figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join(
        [
            f"{cores} cores ({platform.machine()}, {platform.system()})",
            f"Python {platform.python_version()}",
            *(f"{name} {version}" for name in ("torch", "torchx") if (version := _version(name))),
            f"load {os.getloadavg()[0]:.1f} at the start",
        ]
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
