"""What this machine has: GPUs, free ports, room for processes. Hosts have this module too."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from launcher.targets.subprocesses import short_command

PROCESSES_PER_CORE = 200
"""Importing torch takes a second or more of a core, and nodes wait ten minutes for each other."""

SMI_LIMIT_S = 10
"""How long nvidia-smi may take: with a broken GPU it hangs."""
PORTS = range(20000, 32000)
"""Below the range from which kernels hand out ports to outgoing connections."""


def is_free(port: int, address: str) -> bool:
    """Whether the port is free now at this machine's ``address``, and this user may listen at it.

    An empty address stands for all addresses.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def read_size(folder: Path) -> int:
    """The bytes of all files in a folder that this user may see; 0 if it is not there."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def read_used_gpus() -> tuple[str, ...]:
    """Numbers and UUIDs of the GPUs on which processes compute; empty without a driver."""
    used, listed = (
        short_command.read_output(
            ("nvidia-smi", query, "--format=csv,noheader"), timeout_s=SMI_LIMIT_S
        )
        or ""
        for query in ("--query-compute-apps=gpu_uuid", "--query-gpu=uuid,index")
    )
    numbers = dict(line.split(", ") for line in listed.splitlines() if ", " in line)
    uuids = {line.strip() for line in used.splitlines()} & numbers.keys()
    return tuple(sorted(name for uuid in uuids for name in (uuid, numbers[uuid].strip())))


def read_gpus() -> tuple[str, ...]:
    """Ids of this machine's NVIDIA GPUs; empty without a driver.

    As CUDA_VISIBLE_DEVICES and Docker's ``device_ids`` take them: numbers, or the entries of the
    caller's own CUDA_VISIBLE_DEVICES.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    query = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    return tuple((short_command.read_output(query, timeout_s=SMI_LIMIT_S) or "").split())
