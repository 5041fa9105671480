"""A worker that does nothing but collectives, and tells each: what ``recovery`` runs on both sides.

``collectives.py FILE PAUSE_S``: after each all_reduce appends ``<monotonic seconds> <world size>
<rank> <pid>`` to FILE, and sleeps. Linux's monotonic clock is one for all processes of a machine.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main(file: str, pause_s: float) -> None:
    """Runs until it is killed."""
    dist.init_process_group("gloo")
    told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        dist.all_reduce(torch.ones(1))
        line = f"{time.monotonic()} {dist.get_world_size()} {dist.get_rank()} {os.getpid()}\n"
        os.write(told, line.encode())
        time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
