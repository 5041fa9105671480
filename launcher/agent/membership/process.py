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
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.agent import processes, signals, streams
from launcher.agent.membership import wire
from launcher.agent.membership.coordinator import Coordinator
from launcher.agent.membership.settings import Rules, parse_rules
from launcher.contract.node_plan import NodePlan

READY_LIMIT_S = 10.0
STARTS = 3
"""How often to try a fork: next to threads, the child may find a lock that is held for ever."""


ADMIT_LIMIT_S = "120"
"""How long newcomers wait at most until the training has committed."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a coordinator listens, as a node reaches it."""

    host: str
    port: int


class UnservedError(Exception):
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
    port: int, rules: Rules, run_id: str, token: str = "", sign: Path | None = None
) -> CoordinatorProcess:
    """Forks a coordinator that listens on ``port`` (0: any free one) and returns when it does.

    Call it from the main thread: the child dies with the calling thread. Raises ``UnservedError``
    when the port cannot be had.
    """
    origin, said = uuid.uuid4().hex[:12], ""
    for _ in range(STARTS):
        coordinator = Coordinator(rules=rules, run_id=run_id, origin=origin, token=token, sign=sign)
        pid, said = _fork(coordinator, port)
        if said.isdigit():
            return CoordinatorProcess(pid=pid, port=int(said), origin=origin)
        CoordinatorProcess(pid=pid, port=port).stop()
        if said:
            break
    said = said or f"it did not start within {READY_LIMIT_S:g} s, {STARTS} times"
    raise UnservedError(f"no coordinator can listen on port {port}: {said}")


def _fork(coordinator: Coordinator, port: int) -> tuple[int, str]:
    """The child's pid, and its port or why it has none; empty where it said nothing in time."""
    # Without gc.collect(), which takes 30 ms with torch's objects: they are unfrozen again below.
    gc.freeze()
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _live(parent, coordinator, port, writer)
    os.close(writer)
    gc.unfreeze()
    ready, _, _ = select.select([reader], [], [], READY_LIMIT_S)
    # Ended by the kernel, at once: select has said that it is readable.
    said = os.read(reader, 4096).decode() if ready else ""
    os.close(reader)
    return pid, said


def _live(parent: int, coordinator: Coordinator, port: int, writer: int) -> None:
    """The life of the coordinator's process; never returns."""
    try:
        processes.die_with_parent(parent)
        # The parent's pipes and sockets would otherwise stay open as long as this process lives.
        processes.close_all_but([writer])
        for number in (*signals.ENDING, *signals.FOR_SCRIPTS):
            signal.signal(number, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        streams.open_streams()
        listener = wire.listen(port)
        os.write(writer, str(listener.getsockname()[1]).encode())
        os.close(writer)
        asyncio.run(coordinator.serve(listener))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(writer, str(error).partition("\n")[0].encode())
            sys.stderr.flush()
    os._exit(1)


def rules_of(node: NodePlan, conf: Mapping[str, str]) -> Rules:
    """The rules by which this node would coordinate."""
    given = {"node_index": str(node.node_index), "max_restarts": str(node.max_restarts), **conf}
    given["admit_limit_s"] = ADMIT_LIMIT_S
    return parse_rules(given, min_nodes=node.min_nodes, max_nodes=node.max_nodes)


def find_coordinator(
    candidates: Sequence[Endpoint], run_id: str, timeout_s: float, token: str = ""
) -> Endpoint | None:
    """The first candidate that serves this run already, if any.

    Asked before a node serves the run itself: otherwise a host that came back would start a second
    group. Takes at most about ``timeout_s`` per candidate.
    """
    return next((one for one in candidates if ask(one, run_id, timeout_s, token)), None)


def ask(endpoint: Endpoint, run_id: str, timeout_s: float, token: str = "") -> str:
    """The origin of the coordinator that serves the run there; empty where none does.

    Takes at most about ``timeout_s``, also where whatever listens there says nothing.
    """
    address = (endpoint.host, endpoint.port)
    with (
        contextlib.suppress(OSError, wire.WireError),
        socket.create_connection(address, timeout=timeout_s) as connection,
    ):
        origin, answer, _ = wire.greet(connection, run_id=run_id, token=token)
        return "" if answer["closed"] else origin
    return ""
