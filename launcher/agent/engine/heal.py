"""Keeps this node's workers alive when the group changes, if their script can go on in another.

A script that can connects to this agent (``fabric_train/worlds/``). Then torch's agent does not
learn of the change: a thread here forms the group again with the other nodes and sends the workers
their new ranks. If that fails, torch's agent starts the workers anew.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agent.membership.group import Membership, RoundCause
from launcher.agent.streams import say
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock
from launcher.contract.waits import LOOK_S, wait_until

if TYPE_CHECKING:
    from launcher.agent.engine.node_state import Node
    from launcher.agent.engine.torch_agent import Rounds
    from launcher.agent.membership.client import Client

HEAL_LIMIT_S = 120.0
"""How long workers may take to leave a world that is lost before they are started anew."""
LEFT_BEHIND_LIMIT_S = 5.0
"""The same limit if the others have gone on without this node, so that its state is old. After a
freeze a worker may hang: gloo does not wake a thread that waits to send (torch 2.13)."""
BROKEN_LIMIT_S = 1.0
"""How long after the workers' group broke the coordinator may take to report a lost node. If it
reports none, a worker has failed: the group forms again, and that counts as a restart."""
LEAVE_POLL_S = 0.005
"""How often to ask whether the workers have left a group that is lost."""


@dataclass(eq=False)
class _Worker:
    """A worker that can heal: its connection, and the last world that it is in."""

    local_rank: int
    connection: socket.socket
    generation: int
    is_ready: bool = False
    """Whether it waits for a world, or has been in one."""
    waits: bool = False
    """Whether it has left its world, or has had none."""

    def send(self, **message: object) -> None:
        # Does not wait: a worker that runs reads at once, and one that is frozen never does.
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)


class Healer:
    """Heals the present attempt; its threads run as long as the agent."""

    def __init__(self, node: Node, path: Path, clock: Clock) -> None:
        self.path, self._node, self._clock = path, node, clock
        self.rounds: Rounds | None = None
        """The coordinators that this node follows."""
        self.refused = ""
        """Why nothing is healed any more in this attempt; empty while nothing speaks against it."""
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._meeting = threading.Lock()
        """Held by whoever asks the coordinator for a rendezvous."""
        self._is_started = self._is_taken_over = False
        self._broken_at: float | None = None
        self._lost_at: float | None = None
        self.joins = False
        """Whether this attempt's workers wait for a first world that lets them in."""
        self._announced_to: Client | None = None
        self._sent_generation = self._finished_before = 0
        """The last generation that was sent to this attempt's workers, and how many nodes had
        finished then."""

    def start(self) -> None:
        """Begins to listen; idempotent. If the socket cannot be made, as where its path is too
        long, nothing heals."""
        if self._is_started:
            return
        self._is_started = True
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self.path))
        except OSError as error:
            say(f"losses cost a restart: {self.path}: {error}")
            return
        listener.listen()
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()
        threading.Thread(target=self._watch, name="heal", daemon=True).start()

    # -- for torch's agent, in the main thread -----------------------------------------------------
    @property
    def can_heal(self) -> bool:
        """Whether all workers of the present attempt go on in another world."""
        workers = self._node.attempts.workers
        return bool(workers) and not self.refused and len(self._workers) == len(workers)

    @property
    def waits(self) -> bool:
        """Whether all workers wait for another world: they make no steps, and do not hang."""
        workers = [*self._workers.values()]
        return self.can_heal and all(worker.waits for worker in workers)

    @property
    def comes_too_late(self) -> bool:
        """Whether the others finished before this node's workers could come in."""
        roster = self._node.roster
        waits = self.joins and self._sent_generation > 0
        return bool(waits and roster and roster.status.finished > self._finished_before)

    @contextlib.contextmanager
    def suspended(self) -> Any:
        """Stops healing while torch's agent itself forms the group, to start the workers anew."""
        self._is_taken_over = True
        if self._node.roster:
            self._node.roster.wake()
        with self._meeting, self._lock:
            for worker in self._workers.values():
                worker.connection.shutdown(socket.SHUT_RDWR)  # its thread reads, and closes it
            self._workers, self.refused, self._sent_generation = {}, "", 0
            self._broken_at = self._lost_at = None
        try:
            yield
        finally:
            self._is_taken_over = False

    # -- the workers' connections ------------------------------------------------------------------
    def _accept(self, listener: socket.socket) -> None:
        while True:
            # Ended by the end of the agent's process.
            connection, _ = listener.accept()
            threading.Thread(target=self._read_messages, args=[connection], daemon=True).start()

    def _read_messages(self, connection: socket.socket) -> None:
        worker: _Worker | None = None
        with contextlib.suppress(OSError, ValueError, KeyError):
            # Ended by the worker, or by the next attempt.
            for line in connection.makefile("rb"):
                message = json.loads(line)
                if worker is None:
                    worker = self._register(connection, int(message["worker"]))
                elif self._workers.get(worker.local_rank) is worker:
                    self._on_message(worker, message)
        with self._lock:
            if worker and self._workers.get(worker.local_rank) is worker:
                del self._workers[worker.local_rank]

    def _register(self, connection: socket.socket, local_rank: int) -> _Worker:
        roster = self._node.roster
        membership = roster.membership if roster else None
        worker = _Worker(local_rank, connection, membership.generation if membership else 0)
        with self._lock:
            self._workers[local_rank] = worker
            self._node.attempts.break_reasons.pop(local_rank, None)
        return worker

    def _on_message(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        match message:
            case {"ready": _}:
                worker.is_ready = worker.waits = True
                if self._node.roster:
                    self._node.roster.wake()
            case {"broken": why}:
                # A group that another one has replaced already may break.
                if message.get("generation", self._sent_generation) >= self._sent_generation:
                    self._broken_at = self._broken_at or self._clock.monotonic()
                self._node.attempts.break_reasons[worker.local_rank] = why
                say(f"the group of local rank {worker.local_rank} broke: {why}")
                if self._node.roster:
                    self._node.roster.wake()
            case {"formed": generation}:
                worker.generation, worker.waits, self.joins = generation, False, False
                # The loss was of the group before this one.
                self._lost_at = None
                self._node.attempts.break_reasons.pop(worker.local_rank, None)
                if all(
                    other.generation == self._sent_generation for other in self._workers.values()
                ):
                    self._broken_at = None
            case {"healed": generation, "step": step, "paused_s": paused_s}:
                if worker.local_rank == 0:
                    self._node.on_healed(generation, step, paused_s)

    # -- healing -----------------------------------------------------------------------------------
    def _watch(self) -> None:
        while True:
            try:
                self._poll()
            except Exception as error:
                # Nobody else meets the others for these workers.
                self._refuse(repr(error))

    def _poll(self) -> None:
        roster = self._node.roster
        if roster is None or not self.can_heal:
            self._clock.sleep(LOOK_S)
            return
        if self._announced_to is not roster:
            self._announced_to = roster
            roster.say("heals")
        # Ended by a change, or after a look's time.
        roster.settle(partial(self._has_to_meet, roster), LOOK_S)
        now = self._clock.monotonic()
        limit_s = LEFT_BEHIND_LIMIT_S if roster.is_left_behind else HEAL_LIMIT_S
        if self._lost_at and now - self._lost_at > limit_s and not self.waits:
            self._refuse(f"a worker did not leave its world within {limit_s:g} s")
        elif self._has_to_meet(roster):
            with self._meeting:
                if not self._is_taken_over:
                    self._meet(roster)

    def _has_to_meet(self, roster: Client) -> bool:
        if self._is_taken_over or not self.can_heal:
            return False
        if not all(worker.is_ready for worker in self._workers.values()):
            return False
        since = self._broken_at
        is_broken = since is not None and self._clock.monotonic() - since > BROKEN_LIMIT_S
        return is_broken or not roster.is_member or roster.is_gone

    def _meet(self, roster: Client) -> None:
        """Forms the group again with the other nodes, for workers that go on."""
        # Not at the top: see ``run.py``.
        from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError

        status = roster.status
        is_joined = status.cause is RoundCause.JOINED and not status.sealed
        # A node that the others went on without is let in itself.
        lets_in = is_joined and not roster.is_left_behind
        if not (lets_in or self.waits):
            self._send_lost(f"the group has to form again: {status.cause}")
            # A worker that does not leave its group may be about to end by itself. Then torch's
            # agent forms the group again, with new workers.
            wait_until(lambda: self.waits, LOOK_S, LEAVE_POLL_S, self._clock)
            if not self.waits or self._is_taken_over:
                return
        try:
            if roster.is_gone:
                roster = self._follow(roster)
            membership = roster.meet(lambda: self._is_taken_over)
        except RendezvousConnectionError:
            return  # it is followed by another in the next look
        except (RendezvousError, OSError) as error:
            self._refuse(str(error))
            return
        if membership is None:
            return
        self._finished_before = roster.status.finished
        self._sent_generation, self._broken_at, self._lost_at = membership.generation, None, None
        joined = lets_in and membership.cause is RoundCause.JOINED
        self._node.on_met_again(membership)
        with self._lock:
            workers = [*self._workers.values()]
        for worker in workers:
            world = describe_world(membership, worker.local_rank, len(workers))
            worker.send(world=world, generation=membership.generation, joined=joined)

    def _follow(self, roster: Client) -> Client:
        """Goes on around the coordinator that follows one that is gone."""
        assert self.rounds
        why = f"{roster.where} is gone"
        roster.end()
        if not self.rounds.on_lost(Cause.STORE_LOST):
            raise OSError(why)
        self.rounds.plan_next()
        self._node.roster = new = self.rounds.open_roster()
        self._node.ledger.write("store-lost", detail=why)
        say(f"{why}; the next one answers")
        return new

    def _send_lost(self, lost: str) -> None:
        """Tells the workers, once, that their group is lost."""
        if self._lost_at is not None:
            return
        self._lost_at = self._clock.monotonic()
        with self._lock:
            for worker in self._workers.values():
                worker.send(lost=lost, generation=worker.generation)

    def _refuse(self, why: str) -> None:
        """Leaves the present attempt to torch's agent, which starts the workers anew."""
        self.refused = why
        say(f"not healed: {why}; the workers start anew")


def describe_world(membership: Membership, local_rank: int, local_size: int) -> dict[str, str]:
    """The variables of a worker's place, as torch's agent sets them. Pure."""
    rank = membership.before + local_rank
    values: dict[str, object] = {
        "RANK": rank,
        "ROLE_RANK": rank,
        "WORLD_SIZE": membership.workers,
        "ROLE_WORLD_SIZE": membership.workers,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": membership.rank,
        "GROUP_WORLD_SIZE": membership.size,
        "MASTER_ADDR": membership.first.addr,
        "MASTER_PORT": membership.first.port,
        protocol.GENERATION: membership.generation,
    }
    return {name: str(value) for name, value in values.items()}
