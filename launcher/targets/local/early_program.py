"""What runs in an agent's process before there is a plan: imports torch, then becomes the agent.

``python early_program.py``, with a socket as standard input, on which the launcher says in JSON
what is to be done; without a word, as where planning failed or the launcher died, it just ends.

- One agent alone: this process becomes it.
- The agent of a node: a fork of this process becomes it, and this one waits for the next order. So
  it is the template of all nodes of the run, which share one import of torch.

Standard library and torch only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn, TypedDict

IMPORTED = ("torch", "torch.distributed.launcher.api")
"""What an agent imports before it starts workers."""
SAID_BYTES = 1 << 16
ORDER_BYTES = 1 << 16
ROOM = "LAUNCHER_ROOM"
"""A variable whose length is room for those that come later; see ``show_environment``."""
PR_SET_PDEATHSIG = 1
ARGUMENTS, ENVIRONMENT = 45, 47
"""Places in ``/proc/PID/stat`` behind the name: where the first ones begin and end in memory."""


class AgentOrder(TypedDict):
    """An agent that this process is to become; ``cwd`` and ``console`` are paths."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    console: str


class NodeOrder(AgentOrder):
    """The agent of a node, of which this process is the template.

    ``node`` is the launcher's name for it, ``launcher`` a process id. ``env`` has what differs from
    the template's variables, and ``/proc`` shows those in ``shown_first`` before all others.
    """

    node: list[int]
    engine: str
    launcher: int
    shown_first: list[str]


def main() -> None:
    """Returns only where there is nothing to become."""
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    os.environ.pop(ROOM, None)
    can_fork = import_all(IMPORTED) and has_one_thread()
    link = _take_link()
    is_ready = False
    # Until the run is planned, until it is over, or until the launcher has ended.
    while text := link.recv(ORDER_BYTES):
        order = json.loads(text)
        if "node" not in order:
            link.close()
            become(order, can_fork)
        is_ready = is_ready or (can_fork and prepare(order))
        if not is_ready:
            # The launcher sees it, and starts its nodes by themselves. At once, whatever threads
            # there are.
            os._exit(0)
        fork_node(order, link)


def import_all(names: tuple[str, ...]) -> bool:
    """Whether all of them are there."""
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
    except BaseException:
        return False  # The agent itself tells why.
    finally:
        # No garbage, and forks share what the collector never touches.
        gc.freeze()
        gc.enable()
    return True


def has_one_thread() -> bool:
    """Whether this process may be forked: a fork has one thread alone."""
    return len(os.listdir("/proc/self/task")) == 1


def become(order: AgentOrder, can_fork: bool) -> NoReturn:
    """Goes on as the agent of an order, in this process."""
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    _move_streams(order["console"])
    if not can_fork:
        os.execv(sys.executable, (sys.executable, *order["argv"]))
    run(order["argv"])


def run(argv: list[str]) -> NoReturn:
    """Goes on as ``python ARCHIVE NODE-PLAN``."""
    code = 1
    try:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Taking torch's modules apart takes 0.1 s.
        os._exit(code)


def _take_link() -> socket.socket:
    """The socket that is standard input; what is forked here has none."""
    link = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return link


def _move_streams(console: str) -> None:
    """Puts the node's console in the place of the file that took what the imports said."""
    said = os.pread(2, SAID_BYTES, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(output, said)
    for source, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(output)


# -- the template of several nodes -----------------------------------------------------------------


def prepare(order: NodeOrder) -> bool:
    """Makes this process the template of a run's nodes; whether they may be forked from it."""
    os.chdir(order["cwd"])
    archive, task = order["argv"]
    sys.path.insert(0, archive)
    try:
        engine = importlib.import_module(order["engine"])
        import_all(engine.plan_shared(task))
    finally:
        sys.path.remove(archive)
    for name in order["env"]:
        # What is a node's own: other commands would take this process for that node.
        os.environ.pop(name, None)
    may_fork = has_one_thread() and not sys.modules["torch"].cuda.is_initialized()
    return may_fork and show_environment(())


def fork_node(order: NodeOrder, link: socket.socket) -> None:
    """Forks one node, which is the launcher's child: the one between them ends at once."""
    waits, goes = os.pipe()
    between = os.fork()
    if between == 0:
        code = 1
        try:
            if os.fork():
                code = 0
            else:
                os.close(goes)
                # Nothing to read where this process was ended: no launcher counts on the node.
                if os.read(waits, 1):
                    os.close(waits)
                    enter_node(order, link)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(waits)
    _, status = os.waitpid(between, 0)
    if status:
        raise OSError("no more processes can be forked")
    with contextlib.suppress(BrokenPipeError):
        # The launcher is the parent now.
        os.write(goes, b"1")
    os.close(goes)


def enter_node(order: NodeOrder, link: socket.socket) -> NoReturn:
    """Goes on as a node's agent, in the process that was forked for it."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    is_child = os.getppid() == order["launcher"]
    os.environ.update(order["env"])
    is_shown = is_child and show_environment(tuple(order["shown_first"]))
    # Raises where nobody listens: then nobody counts on the node.
    link.send(json.dumps({"node": order["node"], "pid": os.getpid() if is_child else 0}).encode())
    link.close()
    if not is_child:
        os._exit(1)
    show_arguments([sys.executable, *order["argv"]])
    become(order, can_fork=is_shown)


def show_environment(first: tuple[str, ...]) -> bool:
    """Has ``/proc/PID/environ`` show this process' variables, by which others find it.

    The file shows the memory where the first environment lies, which forks inherit and which setenv
    leaves as it is. What has no room there is left out, never the variables in ``first``. False
    where it cannot be done.
    """
    env = dict(os.environ)
    # All anew, so that the C library keeps none of them in that memory.
    os.environ.clear()
    os.environ.update(env)
    start, end = _place_of(ENVIRONMENT)
    block = b""
    for name in sorted(env, key=lambda name: name not in first):
        entry = os.fsencode(f"{name}={env[name]}\0")
        block += entry if len(block) + len(entry) <= end - start else b""
    if not block or start <= 0:
        return False
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)
    return Path("/proc/self/environ").read_bytes().startswith(block)


def show_arguments(argv: list[str]) -> None:
    """Has ``ps`` show this process as one that was started with these arguments, if they fit."""
    start, end = _place_of(ARGUMENTS)
    block = b"".join(os.fsencode(f"{word}\0") for word in argv)
    if 0 < start <= end - len(block):
        ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _place_of(what: int) -> tuple[int, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[what]), int(fields[what + 1])


if __name__ == "__main__":
    main()
