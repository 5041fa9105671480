"""A node's connection to the coordinator. It notices when the coordinator is gone, and when the
group has to form again.

A connection that ends is dialled again at once: where the port refuses, the coordinator is gone.
The caller judges its silence.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from launcher.agent.addresses import LOOPBACK
from launcher.agent.membership import group, wire
from launcher.agent.membership.group import NONE, GroupStatus, Last, Member, Membership, Rules
from launcher.agent.membership.process import CoordinatorProcess
from launcher.agent.streams import say
from launcher.contract.clock import SystemClock
from launcher.contract.records import parse_record
from launcher.contract.waits import SOON_S

PARTING_LIMIT_S = 2.0
log = logging.getLogger(__name__)


class ReplacedError(rdzv.RendezvousClosedError):
    """Another node came with this node's index, and is a member in its place."""


REFUSALS: Mapping[str, type[Exception]] = {
    "closed": rdzv.RendezvousClosedError,
    "timeout": rdzv.RendezvousTimeoutError,
    "replaced": ReplacedError,
    "state": rdzv.RendezvousStateError,
}


class Client:
    """Speaks to one coordinator, from ``begin`` until ``end``."""

    def __init__(
        self,
        host: str,
        port: int,
        run_id: str,
        rules: Rules,
        token: str = "",
        *,
        addr: str = LOOPBACK,
        last: Last = NONE,
        served: CoordinatorProcess | None = None,
    ) -> None:
        """``addr`` is where the other nodes reach this one.

        ``last`` is the membership that this node had at another coordinator. ``served`` is the
        coordinator, if it runs here; it ends with this client.
        """
        self.host, self.port, self.run_id, self._rules = host, port, run_id, rules
        self._clock, self._token, self._before = SystemClock(), token, last
        # Ended by the resolver's own limit.
        self._addr, self._served = addr or socket.getfqdn(), served
        self.name = f"{rules.node_index}.{uuid.uuid4().hex[:8]}"
        self.where = f"the coordinator at {host}:{port}"
        # What the coordinator has said; only the thread changes it.
        self.status, self.losses = GroupStatus(), deque[str]()
        self.membership: Membership | None = None
        """The last one that this node was told."""
        self.answer: Membership | wire.Message | None = None
        """To the last ``join``: the membership, or why there is none."""
        self.alone: bool | None = None
        """Whether no other node is there, once the coordinator knows that this one leaves."""
        self._origin = self._why = ""
        self._has_status = False
        self._ending, self._failure = False, ""
        self._socket: socket.socket | None = None
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self._wishes: dict[str, wire.Message] = {}
        """What the coordinator must know of this node, said again on each connection."""
        self._heard_at = self._checked_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    # -- the caller's side -----------------------------------------------------------------------
    def begin(self) -> None:
        """Waits for the coordinator; raises ``RendezvousConnectionError``."""
        rules = self._rules
        if not rules.fence_dir and not rules.rules_out_another(rules.min_nodes):
            log.warning(
                "no shared checkpoint folder fences this run: after a loss only more than half of "
                f"the last nodes, or more than {rules.max_nodes - rules.min_nodes}, can go on; "
                f"with a checkpoint_dir that all nodes share, any {rules.min_nodes} can"
            )
        self._thread.start()
        threading.Thread(target=self._show_life, name="alive", daemon=True).start()
        limit_s = rules.connect_timeout_s + 1.0
        try:
            if not self.settle(lambda: self._has_status, limit_s):
                why = f": {self._why}" if self._why else ""
                self._fail(f"{self.where} did not answer within {limit_s:g} s{why}")
            self.check()
        except BaseException:
            self.end()
            raise

    @property
    def is_gone(self) -> bool:
        """Whether the coordinator is gone, or silent for too long."""
        with self._changed:
            now, limit_s = self._clock.monotonic(), self._rules.silence_s
            if now - self._checked_at > limit_s / 2:
                # This process itself stood still, so the silence is not the coordinator's.
                self._heard_at = max(self._heard_at, now - limit_s / 2)
            self._checked_at = now
            silent_s = now - self._heard_at
            if self._origin and silent_s > limit_s:
                self._fail(f"{self.where} has been silent for {silent_s:.1f} s")
            return bool(self._failure)

    def check(self) -> None:
        """Raises ``RendezvousConnectionError`` if it is gone."""
        if self.is_gone:
            raise rdzv.RendezvousConnectionError(self._failure)

    @property
    def last(self) -> Last:
        """The newest membership that this node was in, here or around another coordinator."""
        membership, status = self.membership, self.status
        if membership is None:
            return self._before
        majority_of = (
            status.majority_of if status.generation == membership.generation else membership.size
        )
        return Last(membership.generation, majority_of, status.faults, status.finished)

    def say(self, what: str, **more: object) -> None:
        """Tells the coordinator: ``finish``, when all workers have succeeded; ``admit``, when the
        group has committed and those that wait may come in; ``heals``, ``leave``, ``close``.
        """
        message = {"says": what, **more}
        with self._changed:
            # The last thing that was said comes last on the next connection too.
            self._wishes.pop(what, None)
            if what != "admit":
                self._wishes[what] = message
        self._send(message)

    def settle(self, done: Callable[[], object], timeout_s: float) -> bool:
        """Waits until ``done``; False after ``timeout_s``, or if the coordinator is gone."""
        with self._changed:
            self._changed.wait_for(lambda: done() or self._failure, timeout_s)
            return bool(done())

    def wake(self) -> None:
        """Makes all threads that wait here check their condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, done: Callable[[], object]) -> None:
        """Waits until ``done``, without a limit; raises ``RendezvousConnectionError``."""
        while not self.settle(done, self._rules.silence_s / 4):
            self.check()

    def shutdown(self) -> bool:
        """Leaves the group; the exception being handled decides what the others are told.

        After success it waits until the others have finished too: the coordinator may run here.
        ``ChildFailedError`` closes the run. After any other exception it leaves.
        """
        error = sys.exc_info()[1]
        parted = False
        with contextlib.suppress(rdzv.RendezvousConnectionError):
            self.check()
            if isinstance(error, ChildFailedError):
                self.close(group.FAILED)
            elif error is None and self.membership is not None:
                self.say("finish")
                self.wait_until_closed()
            parted = self.leave()
            is_over = self.is_closed() or isinstance(error, rdzv.RendezvousTimeoutError)
            if parted and is_over and self._served is not None:
                # Nodes that wait learn here that the run is over.
                self.wait_for(lambda: self.alone)
        self.end()
        return parted

    def end(self) -> None:
        """Stops the thread. Idempotent."""
        self._ending = True
        if (connection := self._socket) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        if self._served is not None:
            self._served.stop()

    # -- the group -------------------------------------------------------------------------------
    def meet(self, is_over: Callable[[], bool] = lambda: False) -> Membership | None:
        """Asks for a rendezvous and waits for it; None once ``is_over``, which is asked again
        whenever ``wake`` was called. Raises one of ``REFUSALS``, or ``RendezvousConnectionError``.
        """
        rules = self._rules
        limit_s = (self.last.generation and rules.rejoin_timeout_s) or rules.join_timeout_s
        self.check()
        # Held until the membership is sealed, so that no other process takes the port.
        with socket.socket() as held:
            held.bind(("", 0))
            port, answers = int(held.getsockname()[1]), answering_port(self._addr)
            me = Member(self.name, self._addr, port, answers, rules.workers)
            self.answer = None
            self.say("join", member=me, limit_s=limit_s, last=self.last)
            self.wait_for(lambda: self.answer or is_over())
        if (reply := self.answer) is None:
            return None
        if not isinstance(reply, Membership):
            raise REFUSALS[reply["refused"]](reply["text"])
        return reply

    def expect(self) -> Membership:
        """This node's likely place in the running group, for workers that start before it has one.

        They are sent their true place once the group has formed with this node.
        """
        rules = self._rules
        return Membership(
            generation=self.status.generation,
            rank=rules.node_index,
            size=rules.max_nodes,
            cause=group.RoundCause.JOINED,
            first=Member(self.name, self._addr, answering_port(self._addr), workers=rules.workers),
            before=rules.node_index * rules.workers,
            workers=rules.max_nodes * rules.workers,
        )

    @property
    def may_expect(self) -> bool:
        """Whether this node was in no group, and one runs whose workers can let it in at once."""
        return self.membership is None and self.status.heals and not self.status.closed

    def must_meet(self) -> bool:
        """Whether the group has to form again; never blocks.

        Raises ``RendezvousConnectionError`` when the coordinator is gone or silent for too long.
        """
        status, rules = self.status, self._rules
        is_last = rules.max_nodes - status.finished < rules.min_nodes
        if status.closed == group.FINISHED or (self.is_gone and self.is_member and is_last):
            # The workers go on to their end where no other group could be formed.
            return False
        self.check()
        return self.is_closed() or (self.membership is not None and not self.is_member)

    def is_closed(self) -> bool:
        return self.status.closed != ""

    @property
    def is_member(self) -> bool:
        """Whether this node's membership is the newest, and no round was opened since."""
        membership, status = self.membership, self.status
        return (
            membership is not None and status.sealed and status.generation == membership.generation
        )

    @property
    def is_left_behind(self) -> bool:
        """Whether the others have formed a group without this node."""
        membership = self.membership
        return membership is not None and self.status.generation > membership.generation

    def take_losses(self) -> tuple[str, ...]:
        """The nodes that the coordinator reported as lost since the last call, in words."""
        return tuple(self.losses.popleft() for _ in range(len(self.losses)))

    def leave(self) -> bool:
        """Tells the coordinator that this node leaves; the others form a group without it.

        Idempotent; blocks for 2 s at most.
        """
        self.say("leave")
        return self.settle(lambda: self.alone is not None, PARTING_LIMIT_S)

    def wait_until_closed(self) -> None:
        """Blocks until the run is closed or the coordinator is gone; signal handlers may raise."""
        with contextlib.suppress(rdzv.RendezvousConnectionError):
            self.wait_for(self.is_closed)

    def close(self, reason: str) -> bool:
        """Ends the run for all nodes; any reason but ``finished`` also stops running groups."""
        self.say("close", reason=reason)
        return self.settle(self.is_closed, PARTING_LIMIT_S)

    # -- the thread's side -----------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not (self._ending or self._failure):
                self._run_connection()
            self._fail("ended")
        except Exception as error:
            self._fail(f"the connection to {self.where} failed: {error!r}")

    def _fail(self, text: str) -> None:
        with self._changed:
            self._failure = self._failure or text
            self._changed.notify_all()

    def _run_connection(self) -> None:
        """Connects, greets, sends all wishes, and reads messages until the connection ends."""
        try:
            limit_s = max(0.5, self._rules.silence_s / 2)
            connection = socket.create_connection((self.host, self.port), limit_s)
        except OSError as error:
            self._why = error.strerror or str(error)
            if self._origin and isinstance(error, ConnectionRefusedError):
                self._fail(f"{self.where} is gone: {self._why}")
            self._clock.sleep(SOON_S)
            return
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            identity = {"run_id": self.run_id, "token": self._token, "name": self.name}
            try:
                origin, _, lines = wire.greet(connection, **identity)
            except wire.WireError as error:
                if self._why != str(error):
                    self._why = str(error)
                    say(f"rendezvous: {self.where}: {error}; trying again")
                self._clock.sleep(SOON_S)
                return
            if self._origin not in ("", origin):
                self._fail(f"another coordinator answers at {self.host}:{self.port}")
                return
            with self._changed:
                self._origin, self._heard_at = origin, self._clock.monotonic()
                self._socket, wishes = connection, [*self._wishes.values()]
                self._changed.notify_all()
            # The silence is judged by whoever calls ``check``.
            connection.settimeout(None)
            try:
                for wish in wishes:
                    self._send(wish)
                # Ended by ``end``, which shuts the connection down.
                while not self._ending and (line := lines.readline(wire.COORDINATOR_LIMIT)):
                    message = wire.decode(line)
                    with self._changed:
                        self._heard_at = self._clock.monotonic()
                        if self._on_message(message):
                            self._changed.notify_all()
            finally:
                # Nobody sends while it is closed.
                with self._sending:
                    self._socket = None

    def _send(self, message: wire.Message) -> None:
        """Sends a message, if connected; wishes are sent again on the next connection."""
        with self._sending, contextlib.suppress(OSError):
            if (connection := self._socket) is not None:
                # Ended by the thread, when the connection ends.
                connection.sendall(wire.encode(message))

    def _show_life(self) -> None:
        while not (self._ending or self._failure):
            self._send({"says": "alive"})
            self._clock.sleep(self._rules.interval_s)

    def _on_message(self, message: Mapping[str, Any]) -> bool:
        """Stores what the message says; returns whether it is more than a sign of life."""
        match message:
            case {"status": status, "losses": losses}:
                self.status, self._has_status = parse_record(GroupStatus, status), True
                self.losses.extend(losses)
            case {"sealed": sealed}:
                self.answer = self.membership = parse_record(Membership, sealed)
                self._wishes.pop("join", None)
            case {"refused": _}:
                self.answer = message
                self._wishes.pop("join", None)
            case {"alone": alone}:
                self.alone = alone
            case _:
                return False
        return True


@functools.cache
def answering_port(addr: str) -> int:
    """A port that accepts connections as long as this process lives. Raises ``OSError``."""
    listener = wire.listen(0, LOOPBACK if addr in (LOOPBACK, "localhost") else "")
    # A forked process that outlives this one must not answer in its place.
    os.register_at_fork(after_in_child=listener.close)
    os.register_at_fork(after_in_child=answering_port.cache_clear)
    return int(listener.getsockname()[1])
