"""``roster`` for torch's elastic agent: a ``RendezvousHandler`` that uses only public interfaces.

``num_nodes_waiting() > 0`` makes the agent re-form the group without using up a restart: so it
learns of a lost node, a newcomer or a departure. ``backend.py`` makes the handler for torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from launcher.agent.roster import events
from launcher.agent.roster.answering import lifeline_of
from launcher.agent.roster.fencing import Fence, TakenGeneration
from launcher.agent.roster.leaving import (
    AgentStore,
    has_parted,
    is_closed,
    is_known_to_have_finished,
    wait_for_the_others,
)
from launcher.agent.roster.membership import (
    FAILED,
    FENCED_OUT,
    FINISHED,
    Head,
    Membership,
    Phase,
    are_identical,
    format_card,
    format_members,
)
from launcher.agent.roster.settings import IDENTICAL, Rules
from launcher.agent.roster.store import Endpoint, StoreClient, StoreProcess
from launcher.agent.roster.thread import RosterThread
from launcher.agent.roster.view import may_form, nodes_waiting
from launcher.contract.clock import SystemClock

BACKEND = "roster"
FENCE_LOOK_S = 5.0
PARTING_LIMIT_S = 2.0
log = logging.getLogger(__name__)


class ReplacedError(rdzv.RendezvousClosedError):
    """Another node came with this node's index, and is a member in its place."""


REFUSALS: Mapping[str, type[Exception]] = {
    "closed": rdzv.RendezvousClosedError,
    "timeout": rdzv.RendezvousTimeoutError,
    "replaced": ReplacedError,
}


class RosterHandler(rdzv.RendezvousHandler):
    """One node's part in the run's membership; made by ``create_handler``."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        run_id: str,
        local_addr: str,
        rules: Rules,
        store: StoreProcess | None,
    ) -> None:
        self._endpoint, self._run_id, self._addr = endpoint, run_id, local_addr
        self._rules, self._store = rules, store
        self._told_epoch = 0
        self._clock = SystemClock()
        self._fence = Fence(Path(rules.fence_dir), run_id) if rules.fenced else None
        self._fence_looked_at = self._clock.monotonic()
        self._caller: StoreClient | None = None
        self.membership: Membership | None = None
        """What ``next_rendezvous`` returned last."""
        if not self._fence and not rules.rules_out_another(rules.min_nodes):
            log.warning(
                "no shared checkpoint folder fences this run: after a loss only more than half of "
                "the last nodes, or more than %d, can go on; with a checkpoint_dir that all nodes "
                "share, any %d can",
                rules.max_nodes - rules.min_nodes,
                rules.min_nodes,
            )
        self._thread = RosterThread(
            rules, self._connect, self._clock, f"{endpoint.host}:{endpoint.port}"
        )
        # torch gives up by itself where nothing listens; this is for a frozen store
        self._thread.begin(rules.connect_timeout_s + 1.0)

    def _connect(self) -> StoreClient:
        """Opens two connections: one beats, one may block with the caller. Runs in the thread."""
        timeout_s = self._rules.connect_timeout_s
        self._caller = StoreClient(self._endpoint, self._run_id, timeout_s)
        return StoreClient(self._endpoint, self._run_id, timeout_s)

    # -- torch's interface ---------------------------------------------------------------------
    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> rdzv.RendezvousInfo:
        """Blocks until this node is in a sealed membership; raises as torch documents.

        ``RendezvousClosedError`` (``ReplacedError`` if replaced), ``RendezvousTimeoutError``,
        ``RendezvousStateError`` (also where the fence cannot be written),
        ``RendezvousConnectionError``.
        """
        self._thread.check()
        if not nodes_waiting(self._thread.state):
            # As far as is known, workers have failed while the group was whole.
            self._thread.ask_nodes()
        # Held until the membership is sealed, so that no other process takes the port.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
            held.bind(("", 0))
            lifeline, port = lifeline_of(self._addr), int(held.getsockname()[1])
            card = format_card(self._addr, port, lifeline, self._rules.workers)
            self._thread.ask(events.Join(card))
            membership = self._await_membership()
        return self._entered(membership)

    def num_nodes_waiting(self) -> int:
        """Above zero when the group has to re-form; never blocks on the store.

        Raises ``RendezvousConnectionError`` when the store is gone or silent for too long.
        """
        try:
            self._thread.check()
        except rdzv.RendezvousConnectionError:
            if self._ends_without_store():
                return 0
            raise
        self._look_at_fence()
        state = self._thread.state
        waiting = nodes_waiting(state)
        if waiting and state.head and state.head.epoch != self._told_epoch:
            self._told_epoch = state.head.epoch
            log.info("roster: the group re-forms, because of: %s", state.head.cause.value)
        return waiting

    def is_closed(self) -> bool:
        head = self._thread.state.head
        if head is not None:
            return head.phase is Phase.CLOSED
        return self._caller is not None and self._caller.phase() is Phase.CLOSED

    def set_closed(self) -> None:
        """Ends the run for all nodes: none will get another rendezvous."""
        self.close(FINISHED)

    def shutdown(self) -> bool:
        """Ends this node's part, once; what the others learn depends on how it ends.

        After success it waits, however long, until the others have finished too: the store may run
        here. While ``ChildFailedError`` propagates, the run is closed and the others stop. With any
        other exception, or when this node is no member, it just leaves and the others re-form.
        """
        error = sys.exc_info()[1]
        state = self._thread.state
        head = state.head
        current = head is not None and head.epoch == state.entered and state.belongs
        try:
            self._thread.check()
        except Exception:
            parted = False
        else:
            if isinstance(error, ChildFailedError):
                self.close(FAILED)
            elif error is None and (current or state.finishing):
                self.finish()
                self.wait_until_closed()
            parted = self.leave()
        is_over = self.is_closed() or isinstance(error, rdzv.RendezvousTimeoutError)
        if parted and is_over and self._store is not None and self._caller is not None:
            # The host keeps the store until the last of the others has parted or is lost.
            with contextlib.suppress(rdzv.RendezvousConnectionError):
                wait_for_the_others(self._caller, self._thread.state, self._clock)
        # Before the store: torch prints a C++ backtrace if the store ends while it is asked.
        self._thread.end()
        if self._store is not None:
            self._store.stop()
        return parted

    # -- the engine's interface ----------------------------------------------------------------
    @property
    def head(self) -> Head:
        """The state of the run's membership at the last pulse."""
        return self._thread.state.head or Head(origin="", leader="")

    @property
    def is_fenced_out(self) -> bool:
        """Whether the run was closed here because it goes on around another store."""
        return self.head.closed == FENCED_OUT

    def take_losses(self) -> tuple[str, ...]:
        """The losses of nodes that this node has seen since the last call, in words."""
        losses = self._thread.losses
        return tuple(losses.popleft() for _ in range(len(losses)))

    def carried(self) -> dict[str, str]:
        """Settings for the handler of a next store, which knows nothing of the run."""
        if self.membership is None:
            return {}
        head = self.head
        finished = self._rules.finished_before + len(head.finished)
        away = {*head.finished, *head.gone}
        left = tuple(m for m in self.membership.members if m.seat not in away)
        return {
            "nodes_before": str(len(self.membership.members)),
            "members_before": format_members(left),
            "faults_before": str(head.counts.get("fault", 0)),
            "generation_before": str(self.membership.generation),
            "finished_before": str(finished),
        }

    def admit(self) -> None:
        """The running group has committed: the nodes that wait (``head.newcomers``) come in."""
        self._thread.post(events.PlainEvent.ADMIT)

    def leave(self) -> bool:
        """This node goes and says so; the others re-form without it. Idempotent, takes <= 2 s."""
        self._thread.post(events.PlainEvent.LEAVE)
        return self._thread.settle(has_parted, PARTING_LIMIT_S)

    def finish(self) -> None:
        """This node's workers have all succeeded: it joins no further round.

        Idempotent, takes <= 2 s.
        """
        self._thread.post(events.PlainEvent.FINISH)
        self._thread.settle(is_known_to_have_finished, PARTING_LIMIT_S)

    def leave_finished(self) -> None:
        """Leaves a group whose other members still work; this node's workers have succeeded."""
        self.finish()
        self.leave()
        if self._store is not None:
            # The store stays for the others' next pulse, so that they learn of it.
            self._clock.sleep(2 * self._rules.interval_s)

    def wait_until_closed(self) -> None:
        """Blocks until nobody can join another round, or the store is gone.

        The run is closed when all members have finished, when it failed, or when those that have
        not finished cannot form a group. Signal handlers run meanwhile, and may raise.
        """
        with contextlib.suppress(rdzv.RendezvousError):
            while not self._thread.settle(is_closed, 1.0):
                self._thread.check()

    def close(self, reason: str) -> bool:
        """Ends the run for all nodes; any reason but ``finished`` also stops running groups."""
        self._thread.post(events.Close(reason))
        return self._thread.settle(is_closed, PARTING_LIMIT_S)

    # -- within --------------------------------------------------------------------------------
    def _await_membership(self) -> Membership:
        while True:
            match self._thread.next_notice():
                case events.TakeGeneration():
                    self._thread.post(events.Generation(self._take_generation()))
                case events.Refuse(kind, text):
                    raise REFUSALS[kind](text)
                case events.Deliver(membership):
                    return membership

    def _ends_without_store(self) -> bool:
        """Whether the workers can go on without a store, because no other group could be formed."""
        state = self._thread.state
        if state.head is None or not state.belongs or state.entered != state.head.epoch:
            return False
        return state.head.closed == FINISHED or not may_form(state)

    def _entered(self, membership: Membership) -> rdzv.RendezvousInfo:
        self.membership = membership
        first = membership.members[0]
        log.info(
            "roster: epoch %d, generation %d, rank %d of %d, because of: %s",
            membership.epoch,
            membership.generation,
            membership.rank,
            len(membership.members),
            membership.cause.value,
        )
        # torch's agent then numbers the workers without asking the store.
        os.environ.pop(IDENTICAL, None)
        if are_identical(membership.members):
            os.environ[IDENTICAL] = "1"
        assert self._caller is not None
        return rdzv.RendezvousInfo(
            AgentStore(
                f"agent-{membership.epoch}",
                self._caller.below(),
                self.finish,
                self.wait_until_closed,
            ),
            membership.rank,
            len(membership.members),
            rdzv.RendezvousStoreInfo(first.addr, first.port),
        )

    def _take_generation(self) -> int | None:
        head = self._thread.state.head
        if self._fence is None or head is None:
            return None
        try:
            # A leader that was frozen must not take a number above that of the others.
            if (newest := self._overtaken_by(head)) and newest.origin != head.origin:
                self._thread.post(events.Fenced(True))
                return None
            return self._fence.take(head.origin)
        except OSError as error:
            raise rdzv.RendezvousStateError(
                f"no generation can be taken in {self._rules.fence_dir}: {error}"
            ) from error

    def _look_at_fence(self) -> None:
        """The leader looks every few seconds whether another group has taken over."""
        state, now = self._thread.state, self._clock.monotonic()
        if self._fence is None or not state.leads or now - self._fence_looked_at < FENCE_LOOK_S:
            return
        self._fence_looked_at = now
        head = state.head
        # A storage that fails for a moment is looked at again.
        with contextlib.suppress(OSError):
            if head and head.phase is Phase.SEALED and (newest := self._overtaken_by(head)):
                self._thread.post(events.Fenced(newest.origin != head.origin))

    def _overtaken_by(self, head: Head) -> TakenGeneration | None:
        """A generation after that of the last membership, if any; None while a store has none."""
        newest = self._fence.newest() if self._fence else None
        if not newest or not newest.origin or not 0 < head.generation < newest.number:
            return None
        return newest
