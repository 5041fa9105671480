"""The coordinator: one process that holds the membership, with one connection for each node.

It alone has state. What follows from what nodes say and from connections that end is decided in
``decide.py``; here are the connections, the clock and the shared folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.agent.membership import decide, wire
from launcher.agent.membership.fencing import Fence
from launcher.agent.membership.group import (
    FENCED_OUT,
    Cause,
    GroupState,
    Phase,
    are_identical,
    working,
)
from launcher.agent.membership.settings import Member, Rules, format_members
from launcher.agent.streams import say
from launcher.contract.clock import Clock, SystemClock

FENCE_LOOK_S = 5.0
ANSWER_LIMIT_S = 0.5
"""How long a node whose connection has ended may take to come back or to answer."""
STRANGERS = 256
"""Connections that have not yet said who they are."""
BUFFER_LIMIT = 64 * 1024 * 1024
"""A node that reads so much less than it is sent does not read at all."""
SAY_AGAIN_S = 60.0
SIGN_S = 1.0


@dataclass(eq=False)
class Connection:
    """A node's connection, after it has proven that it knows the token."""

    name: str
    writer: asyncio.StreamWriter
    keeps: bool
    """Whether this node may have to serve next, and so has to know the members."""
    heard_at: float

    def send(self, message: wire.Message) -> None:
        if self.writer.transport.get_write_buffer_size() > BUFFER_LIMIT:
            self.writer.transport.abort()
        elif not self.writer.is_closing():
            self.writer.write(wire.encode(message))


@dataclass(eq=False)
class Coordinator:
    """Serves one run until the process ends."""

    rules: Rules
    run_id: str
    origin: str
    """Tells this coordinator from others of the run."""
    token: str = ""
    sign: Path | None = None
    """A file that is touched every second while this process lives."""
    clock: Clock = field(default_factory=SystemClock)
    group: GroupState = field(init=False)
    _connections: dict[str, Connection] = field(default_factory=dict)
    _heard: dict[str, float] = field(default_factory=dict)
    """When a node whose connection has ended was heard last."""
    _events: list[decide.Event] = field(default_factory=list)
    _losses: list[str] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _waits: dict[str, list[Connection]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _told: dict[str, Any] = field(default_factory=dict)
    _said_at: dict[str, float] = field(default_factory=dict)
    _parted: dict[str, Connection] = field(default_factory=dict)
    """Nodes that have said that they leave."""
    _strangers: int = 0
    _is_due: bool = False

    def __post_init__(self) -> None:
        rules = self.rules
        self.group = GroupState(
            rules=rules, phase_at=self.clock.monotonic(), faults=rules.faults_before
        )
        self.group = replace(self.group, generation=rules.generation_before)
        self._ticked_at = self._looked_at = self.clock.monotonic()
        self._fence = Fence(Path(rules.fence_dir), self.run_id) if rules.fenced else None

    async def serve(self, listener: socket.socket) -> None:
        """Runs until it is cancelled."""
        served = partial(self._serve)
        await asyncio.start_server(served, sock=listener, limit=wire.NODE_LIMIT, backlog=4096)
        if self.sign:
            self._spawn(self._show_life(self.sign))
        here = self._is_of_here
        for member in self.rules.before:
            if not here(member):
                self._spawn(self._ask_before(member))
        while True:
            await asyncio.sleep(min(0.1, self.rules.interval_s))
            self._tick()

    # -- connections -----------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers += 1
        peer = str((writer.get_extra_info("peername") or ("?",))[0]).removeprefix("::ffff:")
        connection = None
        try:
            if self._strangers > STRANGERS:
                raise wire.WireError(f"{STRANGERS} others have not said who they are either")
            connection = await self._greet(reader, writer)
        except (wire.WireError, ValueError, KeyError, TypeError, OSError, TimeoutError) as error:
            self._complain(peer, error)
        finally:
            self._strangers -= 1
            if connection is None:
                writer.close()
        if connection is None:
            return
        is_orderly = True
        try:
            # Ended by the silence limit, which aborts the connection.
            while line := await reader.readline():
                connection.heard_at = self.clock.monotonic()
                self._hear(connection, wire.decode(line))
        except OSError:
            is_orderly = False
        except (wire.WireError, ValueError, KeyError, TypeError) as error:
            self._complain(peer, error)
        finally:
            writer.close()
        self._end(connection, is_orderly)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Connection | None:
        """The connection of a node of this run; None for whoever only asks who serves here."""
        nonce = wire.new_nonce()
        writer.write(wire.encode({"origin": self.origin, "nonce": nonce}))
        # Ended by the limit of what is around it.
        line = await asyncio.wait_for(reader.readline(), wire.GREETING_LIMIT_S)
        if not line:
            # Whoever looks whether a port is taken says nothing.
            return None
        hello = wire.decode(line)
        name, run_id = str(hello["name"]), str(hello["run"])
        if run_id != self.run_id:
            raise wire.WireError(f"it is of run {run_id[:60]!r}, and this is {self.run_id!r}")
        wire.check_proof(self.token, nonce, f"{run_id} {name}", hello["proof"])
        proof = wire.prove(self.token, str(hello["nonce"]), self.origin)
        closed = self.group.phase is Phase.CLOSED
        writer.write(wire.encode({"proof": proof, "closed": closed}))
        if not name:
            await writer.drain()
            return None
        connection = Connection(name, writer, bool(hello.get("keeps")), self.clock.monotonic())
        if (before := self._connections.pop(name, None)) is not None:
            before.writer.close()
        self._connections[name] = connection
        self._heard.pop(name, None)
        connection.send({"head": self._head()})
        return connection

    def _complain(self, peer: str, error: Exception) -> None:
        """Says in one line why a connection was ended; the same again only after a while."""
        text = str(error) or type(error).__name__
        if self.clock.monotonic() - self._said_at.get(text, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said_at[text] = self.clock.monotonic()
            say(f"rendezvous: a connection from {peer} was ended: {text}")

    def _hear(self, connection: Connection, message: dict[str, Any]) -> None:
        name = connection.name
        match message.get("says"):
            case "alive":
                connection.send({"alive": True})
            case "join":
                member = Member(name, *message["card"])
                self._post(decide.Join(member, float(message["limit_s"])))
            case "leave":
                self._post(decide.Gone(name, Cause.LEFT))
                self._parted[name] = connection
                connection.send({"parted": self._is_alone})
                self._tell_alone()
            case "finish":
                self._post(decide.Finish(name))
                connection.send({"known": "finish"})
            case "close":
                self._post(decide.Close(str(message["reason"])))
            case "admit":
                self._post(decide.Admit())
            case "set":
                self._set(str(message["key"]), str(message["value"]))
            case "get":
                self._get(connection, str(message["key"]))
            case other:
                raise wire.WireError(f"an unknown message: {str(other)[:40]!r}")

    @property
    def _is_alone(self) -> bool:
        """Whether nobody is there that does not leave and may still have to be told something."""
        return self._connections.keys() <= self._parted.keys()

    def _tell_alone(self) -> None:
        if self._is_alone:
            for connection in self._parted.values():
                connection.send({"parted": True})

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        for connection in self._waits.pop(key, ()):
            connection.send({"key": key, "value": value})

    def _get(self, connection: Connection, key: str) -> None:
        if key in self._values:
            connection.send({"key": key, "value": self._values[key]})
        else:
            self._waits.setdefault(key, []).append(connection)

    # -- whether a node is still there -----------------------------------------------------------
    def _end(self, connection: Connection, is_orderly: bool) -> None:
        if self._connections.get(connection.name) is not connection:
            return
        del self._connections[connection.name]
        self._tell_alone()
        if (node := self.group.nodes.get(connection.name)) is None:
            return
        self._heard[connection.name] = connection.heard_at
        self._spawn(self._look_for(node.member, is_orderly))

    async def _look_for(self, member: Member, is_orderly: bool) -> None:
        """A connection has ended: whether its process has, too.

        A middle box may have cut it. Then the node comes back at once, or its port at least takes a
        connection; and nothing is proven where nothing answers after a reset.
        """
        began = self.clock.monotonic()
        answer = await _dial(member, ANSWER_LIMIT_S)
        if answer is None and is_orderly:
            # The address of a killed container goes with it.
            await asyncio.sleep(max(0.0, began + ANSWER_LIMIT_S - self.clock.monotonic()))
        if member.name in self._connections:
            return
        if answer is False:
            self._lose(member.name, "its connection closed and its port refuses")
        elif answer is None and is_orderly:
            self._lose(member.name, "its connection closed and nothing answers")

    async def _ask_before(self, member: Member) -> None:
        """Whether a member under the last coordinator can still come."""
        if await _dial(member, ANSWER_LIMIT_S) is False:
            self._post(decide.Dead(member.name))

    def _is_of_here(self, member: Member) -> bool:
        return member.node_index == self.rules.node_index

    def _lose(self, name: str, why: str) -> None:
        self._heard.pop(name, None)
        if name in {member.name for member in working(self.group)}:
            index = name.partition(".")[0]
            self._losses.append(f"node {index} is lost: {why}")
        self._post(decide.Gone(name, Cause.LOST))

    def _tick(self) -> None:
        now, limit_s = self.clock.monotonic(), self.rules.detection_limit_s
        if (stood_s := now - self._ticked_at) > limit_s / 2:
            # This process itself stood still: it has learned nothing of the others meanwhile.
            for connection in self._connections.values():
                connection.heard_at += stood_s
            self._heard = {name: at + stood_s for name, at in self._heard.items()}
        self._ticked_at = now
        for name, connection in [*self._connections.items()]:
            if now - connection.heard_at >= limit_s:
                del self._connections[name]
                connection.writer.transport.abort()
                self._lose(name, f"silent for {now - connection.heard_at:.1f} s")
        for name, heard_at in [*self._heard.items()]:
            if now - heard_at >= limit_s:
                self._lose(name, f"silent for {now - heard_at:.1f} s")
        if self._fence and now - self._looked_at >= FENCE_LOOK_S:
            self._looked_at = now
            self._spawn(self._look_at_fence(self._fence))
        self._post(decide.Tick())

    async def _show_life(self, file: Path) -> None:
        while True:
            # A network file system may hang: not in the thread that answers the nodes.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(os.utime, file)
            await asyncio.sleep(SIGN_S)

    # -- deciding and telling ----------------------------------------------------------------------
    def _post(self, event: decide.Event) -> None:
        """All that comes in one turn of the loop is decided about at once."""
        self._events.append(event)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._is_due = False
        events, self._events = self._events, []
        before = self.group
        self.group, actions = decide.step(before, events, self.clock.monotonic())
        # First: whoever is answered looks at it.
        self._tell_head()
        for action in actions:
            if isinstance(action, decide.Refuse):
                self._send(action.name, {"refused": action.kind, "text": action.text})
            elif self._fence:
                self._spawn(self._take_generation(self._fence))
        if self.group.members is not before.members:
            self._values.clear()
            self._tell_members()

    def _tell_members(self) -> None:
        group = self.group
        sealed = {
            "epoch": group.epoch,
            "generation": group.generation,
            "cause": group.cause.value,
            "size": len(group.members),
            "first": group.members[0],
            "identical": are_identical(group.members),
        }
        whole = format_members(group.members)
        for rank, member in enumerate(group.members):
            connection = self._connections.get(member.name)
            if connection is not None:
                names = {"members": whole} if connection.keeps else {}
                connection.send({"sealed": {**sealed, "rank": rank, **names}})

    def _head(self) -> dict[str, Any]:
        group = self.group
        return {
            "phase": group.phase.value,
            "epoch": group.epoch,
            "cause": group.cause.value,
            "closed": group.closed,
            "newcomers": group.newcomers,
            "finished": len(group.finished),
            "generation": group.generation,
            "faults": group.faults,
            "may_form": decide.may_form(group),
        }

    def _tell_head(self) -> None:
        head = self._head()
        if head == self._told and not self._losses:
            return
        self._told, losses, self._losses = head, self._losses, []
        line = {"head": head, "losses": losses} if losses else {"head": head}
        for connection in self._connections.values():
            connection.send(line)

    def _send(self, name: str, message: wire.Message) -> None:
        if (connection := self._connections.get(name)) is not None:
            connection.send(message)

    # -- generations -------------------------------------------------------------------------------
    async def _take_generation(self, fence: Fence) -> None:
        try:
            # A coordinator that was frozen must not take a number above that of the others.
            if await asyncio.to_thread(self._is_overtaken, fence):
                self._fence_out()
                return
            number, error = await asyncio.to_thread(fence.take, self.origin), ""
        except OSError as failed:
            number, error = 0, f"no generation can be taken in {self.rules.fence_dir}: {failed}"
        self._post(decide.Generation(number, error))

    async def _look_at_fence(self, fence: Fence) -> None:
        # A storage that fails for a moment is looked at again.
        with contextlib.suppress(OSError):
            is_sealed = self.group.phase is Phase.SEALED
            if is_sealed and await asyncio.to_thread(self._is_overtaken, fence):
                self._fence_out()

    def _is_overtaken(self, fence: Fence) -> bool:
        newest = fence.newest()
        return bool(
            newest
            and newest.origin not in ("", self.origin)
            and 0 < self.group.generation < newest.number
        )

    def _fence_out(self) -> None:
        self._post(decide.Close(FENCED_OUT))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _dial(member: Member, limit_s: float) -> bool | None:
    """Whether the node's port takes a connection; False where it refuses, None in silence."""
    if not member.answers:
        return None
    try:
        opened = asyncio.open_connection(member.addr, member.answers)
        _, writer = await asyncio.wait_for(opened, limit_s)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    return True


def serve(coordinator: Coordinator, listeners: Sequence[socket.socket]) -> None:
    """Blocks as long as the process lives."""
    asyncio.run(coordinator.serve(listeners[0]))
