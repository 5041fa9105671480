"""What Linux says about a process in ``/proc``, and the record of the process that runs a node: a
host's keeper, or an agent on this machine.

Standard library only, and no newer than Python 3.9: hosts import it with a Python of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # hosts do not import typing, which takes long
    from typing import Any


def read_stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; empty if there is no such process."""
    with suppress(OSError):
        # The name, in parentheses, may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent; None where there is no such process."""
    fields = read_stat(pid)
    return int(fields[1]) if fields else None


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; a stop by a debugger does not count."""
    return read_stat(pid)[:1] == ["T"]


def wait_channel(pid: int) -> str:
    """Where in the kernel a process waits, such as ``nfs_wait_bit_killable``; empty if unknown."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    return ""


def start_of(pid: int) -> str | None:
    """The boot and the tick of a process' start, which earlier ones with the same pid do not have.

    None if there is no such process, or it has ended.
    """
    fields = read_stat(pid)
    # Z and X: the process has ended, but its parent has not noticed yet.
    return f"{boot_id()}:{fields[19]}" if fields and fields[0] not in ("Z", "X") else None


def lives(mark: Mapping[str, object]) -> bool:
    """Whether the process with this ``pid`` and ``start`` runs, as far as it can be seen here."""
    # The pid alone may belong to another process by now.
    pid, start = mark.get("pid"), mark.get("start")
    return isinstance(pid, int) and start is not None and start_of(pid) == start


def name_machine() -> str:
    """A name that tells this machine from others, and stays the same after a reboot."""
    # With the host name: copies of a disk image share their id, and containers often have none.
    machine_id = ""
    with suppress(OSError):
        machine_id = Path("/etc/machine-id").read_text().strip()
    return f"{os.uname().nodename} {machine_id}"


def boot_id() -> str:
    """An id that changes at each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


RECORD = "keeper.json"
"""In the node's folder: pid and start; after the end also exit_code, out_of_memory, detail."""
RECORD_BYTES = 4096


def write_record(folder: Path, record: Mapping[str, object]) -> None:
    """Replaces the record; on a full disk it overwrites the old one in place."""
    data = json.dumps(record).encode().ljust(RECORD_BYTES)
    temporary = folder / f".{RECORD}"
    try:
        temporary.write_bytes(data)
        temporary.replace(folder / RECORD)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            with (folder / RECORD).open("r+b") as file:
                file.write(data[:RECORD_BYTES])


def read_record(folder: Path) -> dict[str, Any]:
    """The record; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text())
        if isinstance(record, dict):
            return record
    return {}
