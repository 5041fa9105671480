"""The processes of this machine, whoever started them.

A run's processes are found by an environment variable that all of them inherit. Process groups
and parents do not lead to all of them: torchrun starts each worker in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from launcher.contract import protocol


def find(**wanted: str) -> tuple[int, ...]:
    """Pids of the living processes that have these variables, whatever their parent."""
    return tuple(sorted(pid for pid, env in _environments() if wanted.items() <= env.items()))


def find_runs() -> dict[str, tuple[int, ...]]:
    """Pids of all living processes of runs, by run id."""
    runs: dict[str, tuple[int, ...]] = {}
    for pid, env in _environments():
        if run_id := env.get(protocol.RUN_ID):
            runs[run_id] = (*runs.get(run_id, ()), pid)
    return runs


def send(pids: tuple[int, ...], signum: signal.Signals) -> None:
    """Sends a signal to those that still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def variable_of(pid: int, name: str) -> str | None:
    """One environment variable of another process; None where it cannot be read."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).environ().get(name)
    return None


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Every readable process but this one, with its environment; a zombie's is empty."""
    # Imported where it is used: what comes before the agent's start delays every run.
    import psutil

    for process in psutil.process_iter():
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error, OSError):
                yield process.pid, process.environ()
