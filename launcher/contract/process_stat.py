"""What Linux tells of a process in ``/proc``, for the launcher, the agent and the hosts.

Standard library only, and no newer than Python 3.9: hosts import it with a Python of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def read_stat(pid: int) -> list[str]:
    """The fields after the name, which begin with the state; empty where there is no process."""
    with suppress(OSError):
        # The name, in parentheses, may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent; None where there is no such process."""
    fields = read_stat(pid)
    return int(fields[1]) if fields else None


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it; stopped by a debugger does not count."""
    return read_stat(pid)[:1] == ["T"]


def wait_channel(pid: int) -> str:
    """Where in the kernel it waits, such as ``nfs_wait_bit_killable``; empty where not told."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    return ""


def start_of(pid: int) -> str | None:
    """Tells a process from earlier ones with the same pid: the boot and the tick of its start.

    None where there is no such process, or it has ended.
    """
    fields = read_stat(pid)
    # States of a process that has ended, which its parent has not noticed yet.
    return f"{boot_id()}:{fields[19]}" if fields and fields[0] not in ("Z", "X") else None


def lives(mark: Mapping[str, object]) -> bool:
    """Whether the very process of this ``pid`` and ``start`` runs, as far as this one can see."""
    # A pid alone may have been given to another process since.
    pid, start = mark.get("pid"), mark.get("start")
    return isinstance(pid, int) and start is not None and start_of(pid) == start


def name_machine() -> str:
    """Tells this machine from others, also after it was started anew."""
    # Copies of one disk image have the same id, and containers often have none.
    machine_id = ""
    with suppress(OSError):
        machine_id = Path("/etc/machine-id").read_text().strip()
    return f"{os.uname().nodename} {machine_id}"


def boot_id() -> str:
    """An id that changes at each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
