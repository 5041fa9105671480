"""Finds processes of this host by their environment, never by a pattern of names."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.process_stat import is_stopped, parent_of

KEEPER = "LAUNCHER_KEEPER"
"""Only a node's keeper has this variable."""
_RUN_ID = protocol.RUN_ID.encode()
_NODE_INDEX = protocol.NODE_INDEX.encode()
_KEEPER = KEEPER.encode()


def find(
    run_id: str, nodes: tuple[int, ...] | None = None, *, keepers: bool = False
) -> tuple[int, ...]:
    """Pids of a run's processes, only of ``nodes`` if given: keepers, or all others."""
    wanted = None if nodes is None else {str(index).encode() for index in nodes}
    return tuple(
        pid
        for pid, env in _environments()
        if env.get(_RUN_ID) == os.fsencode(run_id)
        and (wanted is None or env.get(_NODE_INDEX) in wanted)
        and (_KEEPER in env) == keepers
    )


def roots(pids: tuple[int, ...]) -> tuple[int, ...]:
    """The processes whose parent is not among them."""
    return tuple(pid for pid in pids if parent_of(pid) not in pids)


def send(pids: tuple[int, ...], signum: int) -> None:
    """Sends a signal to those that still live."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def end(pids: tuple[int, ...]) -> None:
    """Kills processes, even stopped ones."""
    send(pids, signal.SIGKILL)


def wake(pid: int) -> None:
    """Continues a process that a signal has stopped."""
    if is_stopped(pid):
        send((pid,), signal.SIGCONT)


def _environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                text = Path(f"/proc/{name}/environ").read_bytes()
                if _RUN_ID in text:
                    pairs = (item.partition(b"=") for item in text.split(b"\0"))
                    yield int(name), {key: value for key, _, value in pairs}
