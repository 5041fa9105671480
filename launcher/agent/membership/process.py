"""The coordinator's process: forked from an agent, and never left behind by it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import select
import signal
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from launcher.agent import processes, signals, streams
from launcher.agent.membership import wire
from launcher.agent.membership.coordinator import Coordinator
from launcher.agent.membership.group import Rules

READY_LIMIT_S = 10.0
STARTS = 3
"""How often to try a fork: next to threads, the child may find a lock that is held for ever."""


class UnservedError(OSError):
    """No coordinator can listen on the port."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorProcess:
    """A running coordinator; dies with the thread that started it, or by ``stop``."""

    pid: int
    port: int
    origin: str = ""

    def stop(self) -> None:
        """Idempotent; returns when the process is gone."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            # Ended by SIGKILL, sent in the line above.
            os.waitpid(self.pid, 0)


def serve_forked(
    port: int,
    rules: Rules,
    run_id: str,
    token: str = "",
    sign: Path | None = None,
    host: str = "",
) -> CoordinatorProcess:
    """Forks a coordinator that listens on ``port`` (0: any free one) and returns when it does.

    It listens on all interfaces, unless ``host`` is an address.

    Call it from the main thread: the child dies with the calling thread. Raises ``UnservedError``
    if the port is taken.
    """
    try:
        listener = wire.listen(port, host)
    except OSError as error:
        raise UnservedError(f"no coordinator can listen on port {port}: {error}") from error
    origin, port = uuid.uuid4().hex[:12], int(listener.getsockname()[1])
    with listener:
        for _ in range(STARTS):
            coordinator = Coordinator(rules, run_id, origin, token, sign)
            pid, has_begun = _fork(coordinator, listener)
            served = CoordinatorProcess(pid=pid, port=port, origin=origin)
            if has_begun:
                return served
            served.stop()
    raise UnservedError(f"no coordinator has started within {READY_LIMIT_S:g} s, {STARTS} times")


def _fork(coordinator: Coordinator, listener: socket.socket) -> tuple[int, bool]:
    """The child's pid, and whether it has begun in time."""
    # Without gc.collect(), which takes 30 ms with torch's objects: they are unfrozen again below.
    gc.freeze()
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(parent, coordinator, listener, writer)
    os.close(writer)
    gc.unfreeze()
    ready, _, _ = select.select([reader], [], [], READY_LIMIT_S)
    # Ended by the kernel, at once: select has said that it is readable.
    has_begun = bool(ready and os.read(reader, 1))
    os.close(reader)
    return pid, has_begun


def _live(parent: int, coordinator: Coordinator, listener: socket.socket, writer: int) -> None:
    """The life of the coordinator's process; never returns."""
    try:
        processes.die_with_parent(parent)
        # The parent's pipes and sockets would otherwise stay open as long as this process lives.
        processes.close_all_but([writer, listener.fileno()])
        for number in (*signals.ENDING, *signals.FOR_SCRIPTS):
            signal.signal(number, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        streams.open_streams()
        os.write(writer, b"1")
        os.close(writer)
        asyncio.run(coordinator.serve(listener))
    except BaseException as error:
        streams.say(f"rendezvous: the coordinator has failed: {error!r}")
    os._exit(1)


def ask(host: str, port: int, run_id: str, timeout_s: float, token: str = "") -> str:
    """The origin of the coordinator that serves the run there; takes about ``timeout_s``.

    Raises ``OSError`` where nothing answers, and ``WireError`` where it is another's, or closed.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        origin, answer, _ = wire.greet(connection, run_id=run_id, token=token)
    if answer["closed"]:
        raise wire.WireError("the run is closed there")
    return origin
