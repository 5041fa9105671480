"""``python memory_watch.py PID``: the memory of a process and of all ssh clients, at its peak.

A process of its own: in the process that is measured it would hold the interpreter's lock, for
which a thread waits 5 ms at each turn. It takes a tenth of one core at most. It says ``ready``,
watches until its standard input ends, and then prints the peak in MB.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

POLL_S = 0.05
SHARE = 0.1
"""How much of one core the watching takes at most."""


def main(pid: int) -> None:
    """Blocks until the standard input ends."""
    print("ready", flush=True)
    peak_mb, wait_s = 0.0, POLL_S
    while not select.select([sys.stdin], [], [], wait_s)[0]:
        began = time.process_time()
        peak_mb = max(peak_mb, read_memory_mb(pid))
        wait_s = max(POLL_S, (time.process_time() - began) / SHARE)
    print(peak_mb)


def read_memory_mb(pid: int) -> float:
    """Of the process and of all ssh clients, also those that hold shared connections.

    What several have in common, such as the program's text and what a fork left as it was, counts
    once in all.
    """
    return sum(_read_kb(each) for each in {pid, *_find_clients()}) * 1024 / 1e6


def _find_clients() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError), open(f"/proc/{int(name)}/comm") as comm:
            if comm.read() == "ssh\n":
                found.append(int(name))
    return found


def _read_kb(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as table:
        return next((int(line.split()[1]) for line in table if line.startswith("Pss:")), 0)
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
