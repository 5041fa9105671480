"""What this machine has: GPUs, and how many processes of a training it can reasonably start."""

from __future__ import annotations

import os

from launcher.targets import short_command

PROCESSES_PER_CORE = 200
"""Importing torch takes a core a second or more, and nodes wait ten minutes for each other."""


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
