"""What this machine has: GPUs, and how many processes of a training it can reasonably start."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from launcher.plan.target_facts import Capacity
from launcher.targets import short_command

BYTES_PER_PROCESS = 64 << 20
"""A process that has imported torch has 140 MiB of its own, a forked one a fraction of that."""
PROCESSES_PER_CORE = 200
"""Importing torch takes a core a second or more, and nodes wait ten minutes for each other."""
IDS_PER_PROCESS = 16
"""Process ids that a training process takes, its threads included."""
LEAST = 64
"""As many processes are allowed on any machine, however slow they are there."""

_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_ID_LIMITS = ("/sys/fs/cgroup/pids.max", "/proc/sys/kernel/pid_max")


def read_gpus() -> tuple[str, ...]:
    """Ids of this machine's NVIDIA GPUs; empty without a driver.

    As CUDA_VISIBLE_DEVICES and Docker's ``device_ids`` take them: numbers, or what the caller's
    own CUDA_VISIBLE_DEVICES leaves.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    query = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    return tuple((short_command.read_output(query, timeout_s=10) or "").split())


def plan_capacity(cores: int, memory_bytes: int, ids: int | None = None) -> Capacity:
    """What cores and memory (0: unknown) allow, and process ids where they are limited. Pure."""
    bounds = {cores * PROCESSES_PER_CORE: f"{cores} CPU cores"}
    if memory_bytes:
        gib = f"{memory_bytes / 2**30:.0f} GiB of memory"
        bounds[memory_bytes // BYTES_PER_PROCESS] = gib
    if ids is not None:
        bounds[ids // IDS_PER_PROCESS] = f"{ids} process ids"
    least = min(bounds)
    return Capacity(processes=max(LEAST, least), why=bounds[least])


def read_capacity(cores: int) -> Capacity:
    """Of this machine, or of the container around this process."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    memory += _read_numbers(_MEMORY_LIMITS)
    ids = _read_numbers(_ID_LIMITS)
    return plan_capacity(cores, min(memory), min(ids) if ids else None)


def _read_numbers(paths: tuple[str, ...]) -> list[int]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path(path).read_text()))
    return found
