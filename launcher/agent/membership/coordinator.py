"""The coordinator: one process that alone holds the membership, with a connection for each node;
finds out which nodes are lost.

``decisions.py`` decides; here are the connections, the clock and the shared folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launcher.agent.membership import decisions, wire
from launcher.agent.membership.group import (
    FENCED_OUT,
    FINISHED,
    OTHER_RUN,
    GroupState,
    Join,
    Member,
    RoundCause,
    Rules,
)
from launcher.agent.streams import say
from launcher.contract.clock import SystemClock
from launcher.contract.generations import Fence
from launcher.contract.records import parse_record
from launcher.contract.waits import RARE_LOOK_S

ANSWER_LIMIT_S = 0.5
"""How long a node whose connection has ended may take to come back or to answer."""
COME_BACK_S = 0.05
"""How long a living node takes at most to connect again and to greet, besides three round trips."""
SIGN_S = 1.0
SETTLE_S = 0.002
"""Events within this time are decided together, so that a thousand nodes that come one by one do
not cause a thousand decisions."""


@dataclass
class Peer:
    """A node that has proven that it knows the token; its connection may have ended since."""

    name: str
    writer: asyncio.StreamWriter
    heard_at: float
    member: Member | None = None
    """As it said when it asked for a rendezvous."""
    parts: bool = False
    """Whether it has said that it leaves."""

    @property
    def is_connected(self) -> bool:
        return not self.writer.is_closing()

    def send(self, line: bytes) -> None:
        if self.is_connected:
            self.writer.write(line)


@dataclass
class Coordinator:
    """Serves one run until the process ends."""

    rules: Rules
    run_id: str
    origin: str
    """Tells this coordinator from others of the run."""
    token: str = ""
    sign: Path | None = None
    """A file that is touched every second while this process lives."""
    _peers: dict[str, Peer] = field(default_factory=dict)
    _events: list[decisions.Event] = field(default_factory=list)
    _losses: list[str] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _complaints: set[str] = field(default_factory=set)
    _settling: bool = False

    def __post_init__(self) -> None:
        self._clock = SystemClock()
        self._ticked_at = self._clock.monotonic()
        self._group = GroupState(rules=self.rules, phase_at=self._ticked_at)
        self._status = self._group.status()
        self._fence = Fence(Path(self.rules.fence_dir), self.run_id)

    async def serve(self, listener: socket.socket) -> None:
        """Runs until it is cancelled."""
        # Such as when no file descriptor is free: asyncio tries again after a second.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, why: self._complain(why.get("exception") or why["message"])
        )
        limit = wire.NODE_LIMIT
        await asyncio.start_server(self._serve, sock=listener, limit=limit, backlog=4096)
        if self.sign:
            self._spawn(self._every(SIGN_S, partial(asyncio.to_thread, os.utime, self.sign)))
        if self.rules.fence_dir:
            self._spawn(self._every(RARE_LOOK_S, partial(self._look_at_fence, take=False)))
        await self._every(min(0.1, self.rules.interval_s), self._tick)

    async def _every(self, pause_s: float, poll: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(pause_s)
            # A network file system may fail for a moment.
            with contextlib.suppress(OSError):
                await poll()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- connections -----------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, is_orderly = None, True
        try:
            peer = await self._greet(reader, writer)
            # Ended by the silence limit, which aborts the connection.
            while peer and (line := await reader.readline()):
                peer.heard_at = self._clock.monotonic()
                self._on_message(peer, wire.decode(line))
        except OSError as error:
            is_orderly = False
            if peer is None:
                self._complain(error, writer)
        except (wire.WireError, ValueError, KeyError, TypeError) as error:
            # What reading a message of somebody else's making may raise.
            self._complain(error, writer)
        finally:
            writer.close()
        if peer and peer.writer is writer and self._peers.get(peer.name) is peer:
            self._tell_alone()
            if peer.member is None or peer.parts:
                del self._peers[peer.name]
            else:
                self._spawn(self._look_for(peer.member, is_orderly))

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Peer | None:
        """The node that connects; None for a client that only asks which coordinator serves here.

        Raises ``WireError``, or what reading a wrong message raises.
        """
        nonce = secrets.token_hex(16)
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
        writer.write(wire.encode({"proof": proof, "closed": self._group.closed}))
        if not name:
            await writer.drain()
            return None
        now = self._clock.monotonic()
        peer = self._peers.setdefault(name, Peer(name, writer, now))
        if peer.writer is not writer:
            peer.writer.close()
            peer.writer, peer.heard_at = writer, now
        peer.send(wire.encode({"status": self._status, "losses": ()}))
        return peer

    def _complain(self, error: object, writer: asyncio.StreamWriter | None = None) -> None:
        """Logs in one line why a connection was ended; each text once."""
        text = str(error) or type(error).__name__
        if text not in self._complaints:
            self._complaints.add(text)
            address = writer and writer.get_extra_info("peername")
            who = str(address[0]).removeprefix("::ffff:") if address else "somebody"
            say(f"rendezvous: a connection from {who} was ended: {text}")

    def _on_message(self, peer: Peer, message: dict[str, Any]) -> None:
        match message.get("says"):
            case "alive":
                peer.send(wire.encode({"alive": True}))
            case "join":
                join = parse_record(Join, message)
                peer.member = join.member
                self._post(join)
            case "leave":
                peer.parts = True
                self._post(decisions.Gone(peer.name, RoundCause.LEFT))
                peer.send(wire.encode({"alone": False}))
                self._tell_alone()
            case "finish":
                self._post(decisions.Gone(peer.name, RoundCause.FINISHED))
            case "close":
                self._post(decisions.Close(str(message["reason"])))
            case "heals":
                self._post(decisions.Heals(peer.name))
            case "admit":
                self._post(decisions.Admit())
            case other:
                raise wire.WireError(f"an unknown message: {str(other)[:40]!r}")

    def _tell_alone(self) -> None:
        """Tells the nodes that leave that they are alone, once no other node is connected."""
        if all(peer.parts or not peer.is_connected for peer in self._peers.values()):
            for peer in self._peers.values():
                peer.send(wire.encode({"alone": True}))

    # -- whether a node is still there -----------------------------------------------------------
    async def _look_for(self, member: Member, is_orderly: bool) -> None:
        """Finds out whether a node whose connection has ended is lost.

        A middle box may have cut the connection, and may refuse in the node's place. Then the node
        connects again at once, or its port accepts. No answer after a reset proves nothing.
        """
        began = self._clock.monotonic()
        try:
            opened = asyncio.open_connection(member.addr, member.answers)
            _, writer = await asyncio.wait_for(opened, ANSWER_LIMIT_S)
            writer.close()
            return
        except ConnectionRefusedError:
            why, round_trip_s = "its port refuses", self._clock.monotonic() - began
            await asyncio.sleep(COME_BACK_S + 3 * round_trip_s)
        except (OSError, TimeoutError):
            if not is_orderly:
                return
            # The address of a killed container goes with it.
            why = "nothing answers"
            await asyncio.sleep(ANSWER_LIMIT_S - (self._clock.monotonic() - began))
        peer = self._peers.get(member.name)
        if peer is None or not peer.is_connected:
            self._lose(member.name, f"its connection closed and {why}")

    def _lose(self, name: str, why: str) -> None:
        if peer := self._peers.pop(name, None):
            peer.writer.transport.abort()
            self._tell_alone()
        if name in self._group.working():
            self._losses.append(f"node {name.partition('.')[0]} is lost: {why}")
        self._post(decisions.Gone(name, RoundCause.LOST))

    async def _tick(self) -> None:
        now, limit_s = self._clock.monotonic(), self.rules.detection_limit_s
        # If this process itself stood still, it has learned nothing of the others meanwhile.
        stood_s, self._ticked_at = now - self._ticked_at, now
        for peer in [*self._peers.values()]:
            peer.heard_at += stood_s if stood_s > limit_s / 2 else 0.0
            if now - peer.heard_at >= limit_s:
                self._lose(peer.name, f"silent for {now - peer.heard_at:.1f} s")
        self._post()

    # -- deciding and telling ----------------------------------------------------------------------
    def _post(self, *events: decisions.Event) -> None:
        """Adds events, and has the next decision made within ``SETTLE_S``, even without events."""
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_later(SETTLE_S, self._settle)
        self._events += events

    def _settle(self) -> None:
        events, self._events, self._settling = self._events, [], False
        before = self._group
        self._group, actions = decisions.step(before, events, self._clock.monotonic())
        if self.rules.fence_dir and self._group.closed == FINISHED != before.closed:
            self._spawn(asyncio.to_thread(self._fence.finish, self._group.generation))
        # Before the answers: a node that gets one reads the status.
        self._tell_status()
        for action in actions:
            match action:
                case decisions.Refuse(name, kind, text) if name in self._peers:
                    self._peers[name].send(wire.encode({"refused": kind, "text": text}))
                case decisions.Tell(names):
                    self._tell_members(names)
                case decisions.TakeGeneration():
                    self._spawn(self._look_at_fence(take=True))

    def _tell_members(self, names: frozenset[str]) -> None:
        group, members, before = self._group, self._group.members, 0
        sealed = {"generation": group.generation, "size": len(members), "cause": group.cause}
        sealed |= {"workers": sum(member.workers for member in members)}
        sealed["first"] = members[0]
        for rank, member in enumerate(members):
            if member.name in names and (peer := self._peers.get(member.name)):
                peer.send(wire.encode({"sealed": {**sealed, "rank": rank, "before": before}}))
            before += member.workers

    def _tell_status(self) -> None:
        status, losses = self._group.status(), self._losses
        if status == self._status and not losses:
            return
        self._status, self._losses = status, []
        line = wire.encode({"status": status, "losses": losses})
        for peer in self._peers.values():
            peer.send(line)

    # -- generations -------------------------------------------------------------------------------
    async def _look_at_fence(self, *, take: bool) -> None:
        """Closes the run if another coordinator took a later generation than this one's group has.

        Else takes the next generation, with ``take``: a coordinator that was frozen must not take a
        number above that of the others. A node that was frozen until the others had finished trains
        no more.
        """
        try:
            # Nodes that have been in no group begin another training of the job.
            since = self._group.generation
            if take and since and await asyncio.to_thread(self._fence.is_finished, since):
                self._post(decisions.Close(FINISHED))
                return
            newest, group = await asyncio.to_thread(self._fence.newest), self._group
            is_of_another = newest is not None and newest.origin not in ("", self.origin)
            if newest and is_of_another and group.members and newest.number > group.generation:
                is_own = newest.run_id == self.run_id
                why = FENCED_OUT if is_own else f"{OTHER_RUN}{newest.run_id}"
                self._post(decisions.Close(why))
            elif take:
                number = await asyncio.to_thread(self._fence.take_next, self.origin)
                self._post(decisions.Generation(number))
        except OSError as error:
            if take:
                why = f"no generation can be taken in {self.rules.fence_dir}: {error}"
                self._post(decisions.Generation(0, why))
