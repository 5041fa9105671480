"""The template of a run's nodes: one process that imports torch, from which they are forked.

So the nodes of one machine share an import that takes longer than all else before their workers
start. A node is the launcher's own child, as one that is started by itself, and outlives the
template. Only nodes that differ in nothing that an import may read are forked: see ``suits``.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import SIGNAL_BASE
from launcher.targets import adoption, proc
from launcher.targets.agent_archive import PRIVATE_PACKAGE
from launcher.targets.local.early import inherited, render_order, start_program

if TYPE_CHECKING:
    from launcher.targets.local.early_program import NodeOrder
    from launcher.targets.local.render import Process

ENGINE = f"{PRIVATE_PACKAGE}.agent.engine.run"
"""The module of the agent's archive that knows what nodes may import together."""
OF_A_NODE = (protocol.NODE_INDEX, protocol.INCARNATION)
SHOWN_FIRST = (protocol.RUN_ID, *OF_A_NODE, protocol.RUN_DIR)
"""Variables by which nodes are found."""
READ_LATER = ("CUDA_VISIBLE_DEVICES", protocol.LINE_PREFIX_TEMPLATE)
"""What may differ between nodes, as no import reads it; so may variables of the launcher's own."""
LAST_WORD_S = 1.0
"""A node that has been forked tells of itself within milliseconds."""

Key = tuple[int, int]
"""Node index and incarnation."""


@dataclass(kw_only=True)
class Settled:
    """What became of nodes that were ordered. ``refused`` are to be started by themselves."""

    pids: dict[Key, int] = field(default_factory=dict)
    codes: dict[Key, int] = field(default_factory=dict)
    """Exit codes of those that are gone with the template."""
    refused: list[Process] = field(default_factory=list)


class Template:
    """The process from which the nodes of one run are forked, and what is ordered of it."""

    def __init__(self, pid: int, started_with: Mapping[str, str], first: Process) -> None:
        """``pid`` is of ``start_program``, with these variables; ``first`` is its first node."""
        self._pid, self._first = pid, first
        self._started_with = {k: v for k, v in started_with.items() if k not in OF_A_NODE}
        self._imported_with = environment_of(first)
        self._ordered: dict[Key, Process] = {}
        self._unsent: deque[bytes] = deque()
        self._adopts = False

    def order(self, process: Process) -> bool:
        """Orders a node, of which ``settle`` tells; False where it must be started by itself."""
        env = environment_of(process)
        order = self._render(process, env)
        lives = self._pid and proc.poll(self._pid) is None
        if not lives or not self.suits(process, env) or len(order) > proc.MESSAGE_BYTES:
            return False
        self._ordered[process.key] = process
        self._unsent.append(order)
        self._adopt_if_needed()
        self._send()
        return True

    def suits(self, process: Process, env: Mapping[str, str]) -> bool:
        """Whether an import finds in the template what it would find in this node. Pure."""
        first, imported_with = self._first, self._imported_with
        names = {*env, *imported_with, *self._started_with}
        differ = {name for name in names if env.get(name) != imported_with.get(name)}
        return (
            (process.argv[0], process.cwd) == (first.argv[0], first.cwd)
            and all(n in READ_LATER or n.startswith("LAUNCHER_") for n in differ)
            and not any(name in self._started_with and name not in env for name in differ)
        )

    def awaits(self, indices: tuple[int, ...]) -> bool:
        """Whether one of these nodes was ordered, and nothing is known of it."""
        return any(index in indices for index, _ in self._ordered)

    def settle(self) -> Settled:
        """What became of orders since it was asked last. Does not wait."""
        settled = Settled()
        if not self._ordered:
            return settled
        self._send()
        if self._read(settled) and (code := proc.poll(self._pid)) is not None:
            # It ends by itself where torch cannot be imported, or not be forked.
            if code >= SIGNAL_BASE:
                settled.codes |= dict.fromkeys(self._ordered, code)
                self._ordered.clear()
            self._close(settled)
        self._adopt_if_needed()
        return settled

    def end(self) -> Settled:
        """Ends it; nodes that it has not forked by now are refused. Idempotent."""
        settled = Settled()
        proc.end_early(self._pid, keeps_answers=True)
        deadline = time.monotonic() + LAST_WORD_S
        # A node that is just being forked keeps the link open until it has told of itself.
        while self._ordered and not self._read(settled) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._close(settled)
        return settled

    def _read(self, settled: Settled) -> bool:
        """Takes the answers that have come; whether no more can come."""
        link = proc.link_to(self._pid)
        try:
            while answer := link.recv(proc.MESSAGE_BYTES):
                told = json.loads(answer)
                process = self._ordered.pop(tuple(told["node"]))
                if told["pid"]:
                    settled.pids[process.key] = told["pid"]
                else:
                    settled.refused.append(process)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # It has ended before it has read all orders.
            pass
        return True

    def _close(self, settled: Settled) -> None:
        settled.refused += self._ordered.values()
        pid, self._pid = self._pid, 0
        proc.end_early(pid)
        self._ordered.clear()
        self._unsent.clear()
        self._adopt_if_needed()

    def _adopt_if_needed(self) -> None:
        needed = bool(self._ordered)
        if needed != self._adopts:
            self._adopts = needed
            (adoption.begin if needed else adoption.end)()

    def _send(self) -> None:
        # What it does not take now is sent later; where it has ended, ``settle`` sees it.
        with contextlib.suppress(OSError):
            while self._unsent:
                proc.link_to(self._pid).send(self._unsent[0])
                self._unsent.popleft()

    def _render(self, process: Process, env: Mapping[str, str]) -> bytes:
        differ = {name: text for name, text in env.items() if self._started_with.get(name) != text}
        order: NodeOrder = {
            **render_order(process, tuple(differ.items())),
            "node": list(process.key),
            "engine": ENGINE,
            "launcher": os.getpid(),
            "shown_first": list(SHOWN_FIRST),
        }
        return json.dumps(order).encode()


def start_template(first: Process) -> Template:
    """A template for nodes like this one. Raises ``OSError`` as ``proc.start`` does."""
    env = environment_of(first)
    for name in OF_A_NODE:
        env.pop(name, None)
    return Template(start_program(first.argv[0], env, first.cwd), env, first)


def environment_of(process: Process) -> dict[str, str]:
    """All variables of a node."""
    return inherited(os.environ) | dict(process.env)
