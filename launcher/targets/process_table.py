"""The processes of this machine's runs, whoever started them, by a variable that they inherit. The
program on hosts has this module too.

A run's processes are found by an environment variable that all of them inherit. Process groups
and parents do not lead to all of them: torchrun starts each worker in a session of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol


def find(**wanted: str) -> tuple[int, ...]:
    """Pids of the living processes of runs with these environment variables."""
    return tuple(sorted(pid for pid, env in environments() if wanted.items() <= env.items()))


def find_runs() -> dict[str, tuple[int, ...]]:
    """Pids of all living processes of runs, by run id."""
    runs: dict[str, tuple[int, ...]] = {}
    for pid, env in environments():
        if run_id := env.get(protocol.RUN_ID):
            runs[run_id] = (*runs.get(run_id, ()), pid)
    return runs


def send(pids: Iterable[int], signum: int) -> None:
    """Sends a signal to the processes that still live."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def variable_of(pid: int, name: str) -> str | None:
    """One environment variable of another process; None if it cannot be read."""
    return _environment(pid).get(name)


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Each process of a run, with its environment, but this one and unreadable ones."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and (env := _environment(int(name))):
            yield int(name), env


def _environment(pid: int) -> dict[str, str]:
    """The environment of a process of a run; empty for any other, and where it cannot be read."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes()
        # Most processes belong to no run, and their environments are not parsed.
        if protocol.RUN_ID.encode() in text:
            pairs = (os.fsdecode(item).partition("=") for item in text.split(b"\0"))
            return {key: value for key, _, value in pairs}
    return {}
