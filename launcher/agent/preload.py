"""The warm process: imported by multiprocessing's fork server, once, before it forks anything.

multiprocessing swallows a failing import, so what happened is written to a file.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from launcher.agent import guard, processes

ORDER = "LAUNCHER_PRELOAD_ORDER"
"""JSON: report file, agent's pid, modules, and the environment to go back to."""

SERVER_PID = 0
STDIN_FD = 0
MAIN = multiprocessing.current_process()
"""multiprocessing's object for a main process; only the server still has one."""
SYS_PATH: tuple[str, ...] = ()
"""What a script's sys.path holds behind its first entry."""
KEPT_FDS: frozenset[int] = frozenset()
"""Descriptors that the imports opened and that forks must keep."""


def prepare(order: dict[str, Any]) -> None:
    """Imports what workers need and reports whether this process may be forked."""
    global SERVER_PID, STDIN_FD, MAIN, SYS_PATH, KEPT_FDS
    processes.die_with_parent(order["agent_pid"])
    SERVER_PID = os.getpid()
    # multiprocessing is about to close it; workers get the agent's, as torchrun's do.
    STDIN_FD = os.dup(0)
    MAIN = multiprocessing.current_process()
    sys.path.remove(order["archive"])
    restore_environment(order["environment"])
    SYS_PATH = tuple(sys.path)
    before = _open_fds()
    problems = _import_all(tuple(order["modules"]))
    KEPT_FDS = _open_fds() - before
    report = {"problems": problems, "refused": _refusal(problems)}
    gc.collect()
    gc.freeze()
    path = Path(order["report"])
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(report))
    temporary.replace(path)


def restore_environment(values: dict[str, str | None]) -> None:
    """Sets or removes variables; None means that one was not set."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _import_all(modules: tuple[str, ...]) -> dict[str, str]:
    problems = {}
    for name in ("torch", "torch.distributed.elastic.multiprocessing.api", *modules):
        try:
            importlib.import_module(name)
        except BaseException as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return problems


def _refusal(problems: dict[str, str]) -> str:
    """Why this process must not be forked; empty where it may."""
    if "torch" in problems:
        return f"torch cannot be imported: {problems['torch']}"
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return "an imported module has initialised CUDA"
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"an imported module has started threads ({threads - 1})"
    return ""


def _open_fds() -> frozenset[int]:
    return frozenset(int(name) for name in os.listdir("/proc/self/fd"))


if ORDER in os.environ:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _order = json.loads(os.environ.pop(ORDER))
    _ENTRY = guard.enter_forked
    with contextlib.suppress(processes.ParentGoneError):
        prepare(_order)
