"""Which GPUs this machine has, for every target that runs on it."""

from __future__ import annotations

import os

from launcher.targets import proc


def read_gpus() -> tuple[str, ...]:
    """Ids of this machine's NVIDIA GPUs; empty without a driver.

    As CUDA_VISIBLE_DEVICES and Docker's ``device_ids`` take them: numbers, or what the caller's
    own CUDA_VISIBLE_DEVICES leaves.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    listed = proc.read_output(
        ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader"), timeout_s=10
    )
    return tuple((listed or "").split())
