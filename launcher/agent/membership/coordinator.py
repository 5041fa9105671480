"""The coordinator: one process that alone holds the membership, with a connection for each node.

``decide.py`` decides; here are the connections, the clock and the shared folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.agent.membership import decide, wire
from launcher.agent.membership.group import FENCED_OUT, Cause, GroupState, Phase
from launcher.agent.membership.settings import Last, Member, Rules, format_members, parse_members
from launcher.agent.streams import say
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.generations import Fence

FENCE_LOOK_S = 5.0
ANSWER_LIMIT_S = 0.5
"""How long a node whose connection has ended may take to come back or to answer."""
COME_BACK_S = 0.05
"""So long, and three round trips, a living node takes at most to dial again and to greet."""
STRANGERS = 4096
"""Connections that have not yet said who they are."""
BUFFER_LIMIT = 64 * 1024 * 1024
"""A node that reads so much less than it is sent does not read at all."""
SAY_AGAIN_S = 60.0
SIGN_S = 1.0
MOST_PAUSE_S = 0.02
BAD_WORDS = (wire.WireError, ValueError, KeyError, TypeError)
"""What reading a message of somebody else's making may raise."""


@dataclass(eq=False)
class Peer:
    """A node that has proven that it knows the token; its connection may have ended since."""

    name: str
    writer: asyncio.StreamWriter
    keeps: bool
    """Whether this node may have to serve next, and so has to know the members."""
    heard_at: float
    answered_at: float = 0.0
    parts: bool = False
    """Whether it has said that it leaves."""

    @property
    def is_connected(self) -> bool:
        return not self.writer.is_closing()

    def send(self, message: wire.Message) -> None:
        self.write(wire.encode(message))

    def write(self, line: bytes) -> None:
        if self.writer.transport.get_write_buffer_size() > BUFFER_LIMIT:
            self.writer.transport.abort()
        elif self.is_connected:
            self.writer.write(line)


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
    _peers: dict[str, Peer] = field(default_factory=dict)
    _events: list[decide.Event] = field(default_factory=list)
    _losses: list[str] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _asked: list[tuple[str, Peer]] = field(default_factory=list)
    """Keys whose values are not there yet, and who waits for them."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _said_at: dict[str, float] = field(default_factory=dict)
    _strangers: int = 0
    _took_s: float = 0.0
    """How long the last decision took."""

    def __post_init__(self) -> None:
        self._ticked_at = self._looked_at = now = self.clock.monotonic()
        self.group = GroupState(rules=self.rules, phase_at=now)
        self._status = self.group.status()
        self._fence = Fence(Path(self.rules.fence_dir), self.run_id) if self.rules.fenced else None

    async def serve(self, listener: socket.socket) -> None:
        """Runs until it is cancelled."""
        # Such as when no file descriptor is free: asyncio tries again after a second.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, why: self._complain("somebody", why.get("exception") or why["message"])
        )
        limit = wire.NODE_LIMIT
        await asyncio.start_server(self._serve, sock=listener, limit=limit, backlog=4096)
        if self.sign:
            self._spawn(self._show_life(self.sign))
        for member in parse_members(self.rules.last_members):
            if member.node_index != self.rules.node_index:
                self._spawn(self._ask_before(member))
        while True:
            await asyncio.sleep(min(0.1, self.rules.interval_s))
            self._tick()

    # -- connections -----------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, is_stranger, is_orderly = None, True, True
        self._strangers += 1
        try:
            if self._strangers > (most := STRANGERS + self.rules.max_nodes):
                raise wire.WireError(f"{most} others have not said who they are either")
            peer = await self._greet(reader, writer)
            self._strangers, is_stranger = self._strangers - 1, False
            # Ended by the silence limit, which aborts the connection.
            while peer and (line := await reader.readline()):
                peer.heard_at = self.clock.monotonic()
                self._hear(peer, wire.decode(line))
        except OSError as error:
            is_orderly = False
            if peer is None:
                self._complain(_address(writer), error)
        except BAD_WORDS as error:
            self._complain(_address(writer), error)
        finally:
            self._strangers -= is_stranger
            writer.close()
        if peer and self._peers.get(peer.name) is peer:
            self._end(peer, is_orderly)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Peer | None:
        """A node of this run; None for whoever only asks who serves here."""
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
        if (before := self._peers.get(name)) is not None:
            before.writer.close()
        peer = Peer(name, writer, bool(hello.get("keeps")), self.clock.monotonic())
        self._peers[name] = peer
        peer.send({"status": self._status, "losses": ()})
        return peer

    def _complain(self, address: str, error: object) -> None:
        """Says in one line why a connection was ended; the same again only after a while."""
        text = str(error) or type(error).__name__
        if self.clock.monotonic() - self._said_at.get(text, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said_at[text] = self.clock.monotonic()
            say(f"rendezvous: a connection from {address} was ended: {text}")

    def _hear(self, peer: Peer, message: dict[str, Any]) -> None:
        match message.get("says"):
            case "alive":
                if peer.heard_at - peer.answered_at >= self.rules.silence_s / 10:
                    peer.answered_at = peer.heard_at
                    peer.send({"alive": True})
            case "join":
                member, last = Member(peer.name, *message["member"]), Last(*message["last"])
                limit_s, after = float(message["limit_s"]), int(message["after"])
                self._post(decide.Join(member, limit_s, after, last))
            case "leave":
                peer.parts = True
                self._post(decide.Gone(peer.name, Cause.LEFT))
                peer.send({"known": "leave"})
                self._tell_alone()
            case "finish":
                self._post(decide.Finish(peer.name))
                peer.send({"known": "finish"})
            case "close":
                self._post(decide.Close(str(message["reason"])))
            case "admit":
                self._post(decide.Admit())
            case "set":
                self._values[str(message["key"])] = str(message["value"])
                self._give_values()
            case "get":
                self._asked.append((str(message["key"]), peer))
                self._give_values()
            case other:
                raise wire.WireError(f"an unknown message: {str(other)[:40]!r}")

    def _give_values(self) -> None:
        asked, self._asked = self._asked, []
        for key, peer in asked:
            if key in self._values:
                peer.send({"key": key, "value": self._values[key]})
            else:
                self._asked.append((key, peer))

    def _tell_alone(self) -> None:
        """Where nobody is there that does not leave and may still have to be told something."""
        if all(peer.parts or not peer.is_connected for peer in self._peers.values()):
            for peer in self._peers.values():
                peer.send({"alone": True})

    # -- whether a node is still there -----------------------------------------------------------
    def _end(self, peer: Peer, is_orderly: bool) -> None:
        self._tell_alone()
        if (node := self.group.nodes.get(peer.name)) is None:
            del self._peers[peer.name]
        else:
            self._spawn(self._look_for(node.member, is_orderly))

    async def _look_for(self, member: Member, is_orderly: bool) -> None:
        """A connection has ended: whether its process has, too.

        A middle box may have cut it, and may refuse for it. Then the node comes back at once, or
        its port takes a connection. Nothing is proven where nothing answers after a reset.
        """
        began = self.clock.monotonic()
        answer = await _dial(member, ANSWER_LIMIT_S)
        took_s = self.clock.monotonic() - began
        if answer or (answer is None and not is_orderly):
            return
        # The address of a killed container goes with it.
        why = "nothing answers" if answer is None else "its port refuses"
        await asyncio.sleep(ANSWER_LIMIT_S - took_s if answer is None else COME_BACK_S + 3 * took_s)
        if (peer := self._peers.get(member.name)) and not peer.is_connected:
            self._lose(member.name, f"its connection closed and {why}")

    async def _ask_before(self, member: Member) -> None:
        """Whether a member under the last coordinator can still come."""
        if await _dial(member, ANSWER_LIMIT_S) is False:
            self._post(decide.Dead())

    def _lose(self, name: str, why: str) -> None:
        self._peers.pop(name).writer.transport.abort()
        if name in {member.name for member in self.group.working()}:
            self._losses.append(f"node {name.partition('.')[0]} is lost: {why}")
        self._post(decide.Gone(name, Cause.LOST))

    def _tick(self) -> None:
        now, limit_s = self.clock.monotonic(), self.rules.detection_limit_s
        # If this process itself stood still, it has learned nothing of the others meanwhile.
        stood_s, self._ticked_at = now - self._ticked_at, now
        for peer in [*self._peers.values()]:
            peer.heard_at += stood_s if stood_s > limit_s / 2 else 0.0
            if now - peer.heard_at >= limit_s:
                self._lose(peer.name, f"silent for {now - peer.heard_at:.1f} s")
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
        """All that comes while a decision takes is decided about at once, so that a thousand nodes
        that come one by one are not a thousand decisions."""
        self._events.append(event)
        if len(self._events) == 1:
            asyncio.get_running_loop().call_later(self._took_s, self._settle)

    def _settle(self) -> None:
        events, self._events, before = self._events, [], self.group
        began = self.clock.monotonic()
        self.group, actions = decide.step(before, events, began)
        self._took_s = min(MOST_PAUSE_S, self.clock.monotonic() - began)
        # First: whoever is answered looks at it.
        self._tell_status()
        for action in actions:
            match action:
                case decide.Refuse(name, kind, text) if name in self._peers:
                    self._peers[name].send({"refused": kind, "text": text})
                case decide.TellAgain(name):
                    self._tell_members(name)
                case decide.TakeGeneration() if self._fence:
                    self._spawn(self._take_generation(self._fence))
        if self.group.members is not before.members:
            self._values.clear()
            self._tell_members(*(member.name for member in self.group.members))

    def _tell_members(self, *names: str) -> None:
        group, whole, chosen = self.group, format_members(self.group.members), {*names}
        sealed = group.membership()
        for rank, member in enumerate(group.members):
            if member.name in chosen and (peer := self._peers.get(member.name)) is not None:
                members = {"members": whole} if peer.keeps else {}
                peer.send({"sealed": {**sealed, "rank": rank, **members}})

    def _tell_status(self) -> None:
        status, losses = self.group.status(), self._losses
        if status == self._status and not losses:
            return
        self._status, self._losses = status, []
        line = wire.encode({"status": status, "losses": losses})
        for peer in self._peers.values():
            peer.write(line)

    # -- generations -------------------------------------------------------------------------------
    async def _take_generation(self, fence: Fence) -> None:
        try:
            # A coordinator that was frozen must not take a number above that of the others.
            if await self._is_overtaken(fence):
                return
            number, error = await asyncio.to_thread(fence.take, self.origin), ""
        except OSError as failed:
            number, error = 0, f"no generation can be taken in {self.rules.fence_dir}: {failed}"
        self._post(decide.Generation(number, error))

    async def _look_at_fence(self, fence: Fence) -> None:
        # A storage that fails for a moment is looked at again.
        with contextlib.suppress(OSError):
            if self.group.phase is Phase.SEALED:
                await self._is_overtaken(fence)

    async def _is_overtaken(self, fence: Fence) -> bool:
        """Whether another took a later generation after a group was sealed here; then it ends."""
        newest, group = await asyncio.to_thread(fence.newest), self.group
        if newest is None or newest.origin in ("", self.origin):
            return False
        if is_overtaken := bool(group.members) and newest.number > group.generation:
            self._post(decide.Close(FENCED_OUT))
        return is_overtaken

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _address(writer: asyncio.StreamWriter) -> str:
    return str((writer.get_extra_info("peername") or ("?",))[0]).removeprefix("::ffff:")


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
