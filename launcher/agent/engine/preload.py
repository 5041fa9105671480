"""The warm process: forked from the agent once torch is imported, it forks every worker. Also why
``start: fork`` is not possible here.

So torch is imported once for the agent and all workers. It runs multiprocessing's fork server, but
is started here: multiprocessing would start a new interpreter, which would import torch again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from launcher.agent import processes, signals
from launcher.contract.errors import ExitCode

SERVER_PID = 0
STDIN_FD = 0
"""The agent's standard input, which multiprocessing closes; torchrun's workers have it too."""
MAIN = multiprocessing.current_process()
"""multiprocessing's object for a main process; its forks have others."""
SYS_PATH: tuple[str, ...] = ()
"""What a script's sys.path holds after its first entry."""
KEPT_FDS: frozenset[int] = frozenset()
"""Descriptors that the imports opened and that forks must keep."""

_SERVER_FIELDS = ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
_KNOWN_SIGNATURE = ["listener_fd", "alive_r", "preload", "main_path", "sys_path"]


def import_all(modules: tuple[str, ...]) -> dict[str, str]:
    """Imports torch and ``modules`` here; returns what failed, and why."""
    global SYS_PATH, KEPT_FDS
    # The agent's archive: scripts must not see it, and importlib.metadata would open it.
    archive = sys.path.pop(0)
    SYS_PATH = tuple(sys.path)
    # Now, so that forks do not keep the tracker's pipe: each worker starts a tracker of its own.
    resource_tracker.ensure_running()
    before = processes.open_fds()
    with without_collector():
        problems = _import(("torch", "torch.distributed.elastic.multiprocessing.api"))
    problems |= _import(modules)
    KEPT_FDS |= processes.open_fds() - before
    sys.path.insert(0, archive)
    return problems


def import_warm(modules: tuple[str, ...]) -> None:
    """Imports torch, ``modules`` if they are installed, and torch's agent, so that forks of this
    process have them already."""
    global KEPT_FDS
    archive, before = sys.path.pop(0), processes.open_fds()
    with without_collector():
        _import(("torch", *modules))
        sys.path.insert(0, archive)
        from launcher.agent.engine import torch_agent

        assert torch_agent
    KEPT_FDS |= processes.open_fds() - before


def _import(modules: tuple[str, ...]) -> dict[str, str]:
    problems = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return problems


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Stops garbage collection while torch is imported: it takes a tenth of the time in vain."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def find_refusal(problems: dict[str, str]) -> str:
    """Why this process must not be forked; empty where it may."""
    if "torch" in problems:
        return f"torch cannot be imported: {problems['torch']}"
    torch = sys.modules["torch"]
    if torch.backends.cuda.is_built() and _is_bad_in_fork(torch):
        return "an imported module has initialised CUDA, or asked for its devices"
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"an imported module has started threads ({threads - 1})"
    server = vars(forkserver).get("_forkserver")
    signature = list(inspect.signature(forkserver.main).parameters)
    if signature != _KNOWN_SIGNATURE or not all(hasattr(server, name) for name in _SERVER_FIELDS):
        return f"Python {sys.version_info[0]}.{sys.version_info[1]} has an unknown fork server"
    return ""


def _is_bad_in_fork(torch: ModuleType) -> bool:
    """Whether a fork of this process could not use CUDA, which only a fork can tell."""
    pid = os.fork()
    if pid == 0:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    # Ended by the child, which only asks torch and exits.
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) != 0


def start_server(address: Path) -> None:
    """Forks the server, which listens at ``address``. Call only after ``find_refusal`` found none.

    The server and what it forks die with this process.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    address.chmod(0o600)
    listener.listen()
    alive_r, alive_w = os.pipe()
    # Forks share what the collector never touches again.
    gc.collect()
    gc.freeze()
    agent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(alive_w)
        _serve(listener.detach(), alive_r, agent_pid)
    os.close(alive_r)
    listener.close()
    server = vars(forkserver)["_forkserver"]
    for name, value in zip(_SERVER_FIELDS, (str(address), alive_w, pid), strict=True):
        setattr(server, name, value)
    # multiprocessing would start another server, without torch, whose workers fail at once.
    server.ensure_running = lambda: _check_running(pid)


class ServerGoneError(Exception):
    """The warm process has ended: no worker can be forked from it any more."""


def _check_running(pid: int) -> None:
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = pid
    if ended:
        raise ServerGoneError(f"the process that forks workers (pid {pid}) was ended from outside")


def _serve(listener_fd: int, alive_r: int, agent_pid: int) -> NoReturn:
    global SERVER_PID, STDIN_FD
    try:
        processes.die_with_parent(agent_pid)
        SERVER_PID = os.getpid()
        STDIN_FD = os.dup(0)
        signals.ignore_signals()
        forkserver.main(listener_fd, alive_r, [])
    except (SystemExit, processes.ParentGoneError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(int(ExitCode.AGENT_FAILED))
