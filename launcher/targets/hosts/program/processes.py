"""Processes of this host by the variables that label them, never by a pattern of names."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol

KEEPER = "LAUNCHER_KEEPER"
"""Set for a node's keeper alone."""
_RUN_ID = protocol.RUN_ID.encode()
_NODE_INDEX = protocol.NODE_INDEX.encode()
_KEEPER = KEEPER.encode()


def find(
    run_id: str, nodes: tuple[int, ...] | None = None, *, keepers: bool = False
) -> tuple[int, ...]:
    """Pids of a run's living processes, of ``nodes`` alone if given: keepers, or all others."""
    wanted = None if nodes is None else {str(index).encode() for index in nodes}
    return tuple(
        pid
        for pid, env in _environments()
        if env.get(_RUN_ID) == os.fsencode(run_id)
        and (wanted is None or env.get(_NODE_INDEX) in wanted)
        and (_KEEPER in env) == keepers
    )


def roots(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the processes whose parent is none of them."""
    return tuple(pid for pid in pids if parent_of(pid) not in pids)


def send(pids: tuple[int, ...], signum: int) -> None:
    """Sends a signal to those that still live."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def end(pids: tuple[int, ...]) -> None:
    """Kills, the stopped ones too."""
    send(pids, signal.SIGKILL)


def wake(pid: int) -> None:
    """Continues a process that a signal has stopped."""
    if _stat(pid)[:1] == ["T"]:
        send((pid,), signal.SIGCONT)


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent; None where it has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def start_of(pid: int) -> str | None:
    """What tells a process from all others that ever had its pid; None where it has ended."""
    fields = _stat(pid)
    if not fields or fields[0] in ("Z", "X"):
        return None
    return f"{boot_id()}:{fields[19]}"


def boot_id() -> str:
    """Another one after each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        # The name, in parentheses, may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                text = Path(f"/proc/{name}/environ").read_bytes()
                if _RUN_ID in text:
                    pairs = (item.partition(b"=") for item in text.split(b"\0"))
                    yield int(name), {key: value for key, _, value in pairs}
