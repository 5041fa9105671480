"""A wrapper around torch's rendezvous handler: it decides what happens between two attempts.

torch's elastic agent calls ``next_rendezvous`` before each start of its workers, when the old ones
are dead. The handler then tells why they died, counts it, waits for the GPUs, or ends the run.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)

from launcher.agent.engine.faults import LOST_PEER, FaultBook, GiveUp
from launcher.agent.roster import membership
from launcher.agent.roster.backend import create_handler
from launcher.agent.roster.handler import RosterHandler
from launcher.agent.roster.leaving import ARRIVED_KEY
from launcher.agent.roster.membership import Cause
from launcher.agent.stopping import StopFiles
from launcher.contract import protocol
from launcher.contract.agent_settings import ROSTER
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.reasons import Reason
from launcher.contract.worker_end import WorkerEnd, describe

if TYPE_CHECKING:
    from launcher.agent.engine.node_state import Node

T = TypeVar("T")

_FAULTS_KEY = "worker-faults"
_FAULT_IN_ROUND_KEY = "launcher/worker-fault"
_VERDICT_KEY = "verdict"
_LEFT_KEY = "launcher/left"
LEAVING_LIMIT_S = 10.0
"""How long the node that serves the store waits, after a good end, for the others to leave."""
_LOOK_S = 0.05
REQUEST_LIMIT_S = 2.0
"""After workers were ended by SIGTERM from elsewhere, how long a stop request may take."""
PEER_FINISHES_S = 5.0
"""How long after a failure another agent may take to see that its own workers have succeeded."""
PEER_LOOK_S = 0.1
ADMISSION_LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""
_REASON_OF_CLOSING = {
    membership.FINISHED: Reason.COMPLETED,
    membership.FAILED: Reason.TRAINING_FAILED,
    membership.EXHAUSTED: Reason.RESTARTS_EXHAUSTED,
}


class NodeEnding(Exception):  # noqa: N818 - an ending, not necessarily an error
    """Raised inside torch's agent to end it with a reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def register_wrapper(backend: str, node: Node) -> str:
    """Registers the handler with torch and returns the name of its backend."""
    name = f"launcher-{backend}"

    def create(params: RendezvousParameters) -> RendezvousHandler:
        given = copy.copy(params)
        given.backend = backend
        own = backend == ROSTER
        inner = (create_handler if own else rendezvous_handler_registry.create_handler)(given)
        serves = not own and params.config.get("is_host") == "1"
        fixed_size = params.min_nodes == params.max_nodes
        return RendezvousWrapper(name, inner, node, fixed_size=fixed_size, serves_store=serves)

    with contextlib.suppress(ValueError):
        rendezvous_handler_registry.register(name, create)
    return name


class RendezvousWrapper(RendezvousHandler):
    """Delegates to the real handler, and tells the node what happens.

    ``serves_store``: the store ends with this process, and no other node may still need it.
    """

    def __init__(
        self,
        name: str,
        inner: RendezvousHandler,
        node: Node,
        *,
        fixed_size: bool,
        serves_store: bool = False,
    ) -> None:
        self._name, self._inner, self._node = name, inner, node
        self._fixed_size, self._serves_store = fixed_size, serves_store
        self._num_nodes = 1
        self._roster = node.roster = inner if isinstance(inner, RosterHandler) else None
        self._admission = Admission(StopFiles(node.attempts.node_dir), self._roster, SystemClock())
        self._faults = JobFaults(node.book)
        self._has_run = False
        self._regroups = False
        self._blamed_peer: tuple[WorkerEnd, ...] = ()

    def get_backend(self) -> str:
        return self._name

    @property
    def use_agent_store(self) -> bool:
        return self._inner.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises ``NodeEnding`` where the workers must not be started again."""
        node = self._node
        if self._has_run:
            self._judge_last_attempt()
            node.attempts.forget_speaker()
            self._admission.new_attempt()
            node.wait_for_gpus()
            node.wait_for_room()
        node.enter("rendezvous")
        try:
            info = self._inner.next_rendezvous()
        except RendezvousClosedError:
            self._raise_verdict()
            raise
        finally:
            self._tell_losses()
        self._regroups = False
        self._tell_lost_peer()
        node.on_rendezvous(info.rank, info.world_size)
        if self._roster is None and (give_up := self._faults.share(info)):
            self._end(give_up)
        self._has_run = True
        self._num_nodes = info.world_size
        return info

    def _judge_last_attempt(self) -> None:
        node = self._node
        files = StopFiles(node.attempts.node_dir)
        if node.attempts.were_signalled():
            _wait_for_request(files)
        if files.is_asked() and not files.is_for_resize():
            # Not an error: the others re-form, so the rendezvous must stay open.
            raise SignalException("asked to stop", signal.SIGTERM)
        if node.attempts.have_succeeded():
            # The group re-forms, but this node's workers had ended well before that.
            if self._roster:
                self._roster.finish()
                self._roster.wait_until_closed()
            raise NodeEnding(Reason.COMPLETED, "")
        ends, verdict = node.judge(regroups=self._regroups)
        if isinstance(verdict, GiveUp):
            self._end(verdict)
        if verdict.counts and (give_up := self._faults.count(ends)):
            self._end(give_up)
        failed = verdict.counts or verdict.cause == LOST_PEER
        # A failure that names no peer is not held up.
        limit_s = PEER_FINISHES_S if verdict.cause == LOST_PEER else 0.0
        if failed and self._fixed_size and self._faults.a_peer_finishes(limit_s):
            self._end(GiveUp(reason=Reason.TRAINING_FAILED, detail=describe(ends[0])))
        if verdict.cause == LOST_PEER:
            self._blamed_peer = ends
        else:
            node.on_restart(verdict.cause, ends)

    def _tell_losses(self) -> None:
        for text in self._roster.take_losses() if self._roster else ():
            self._node.on_node_lost(text)

    def _tell_lost_peer(self) -> None:
        """Counts a restart after workers blamed a peer; by now it is known if a node left."""
        ends, self._blamed_peer = self._blamed_peer, ()
        if not ends:
            return
        formed = self._roster.membership if self._roster else None
        # Stock handlers do not know why: only the workers' words are there to go by.
        is_fault = formed is not None and formed.cause is Cause.FAULT
        self._node.on_restart("worker-fault" if is_fault else LOST_PEER, ends)

    def _end(self, give_up: GiveUp) -> NoReturn:
        if give_up.reason is Reason.DISK_FULL:
            # Only this node ends: the others wait for it, or continue without it.
            raise NodeEnding(give_up.reason, self._node.describe_disk(give_up.detail))
        self._faults.tell(give_up)
        if self._roster:  # torch closes the others itself
            self._roster.close("failed")
        raise NodeEnding(give_up.reason, give_up.detail)

    def _raise_verdict(self) -> None:
        """Raises the reason for which another node, or the count of faults, ended the run."""
        head, ends = self._roster and self._roster.head, self._node.ends
        told = self._faults.told() or (_REASON_OF_CLOSING.get(head.closed) if head else None)
        if told is Reason.COMPLETED:
            raise NodeEnding(told, "the other nodes finished the run") from None
        stranded = head and head.closed == membership.STRANDED and head.cause is Cause.FAULT
        if stranded and any(end.cause != "terminated" for end in ends):
            raise NodeEnding(Reason.TRAINING_FAILED, describe(ends[0])) from None
        if told is Reason.RESTARTS_EXHAUSTED and self._node.book.max_restarts == 0:
            told = Reason.TRAINING_FAILED
        if told is not None:
            detail = f"last: {describe(ends[0])}" if ends else "another node ended the run"
            raise NodeEnding(told, detail) from None

    def num_nodes_waiting(self) -> int:
        self._admission.look()
        waiting = self._inner.num_nodes_waiting()
        self._tell_losses()
        self._regroups = self._regroups or waiting > 0
        return waiting

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """After a good end the node with the store leaves last.

        The others still close their rendezvous there, and torch prints a C++ backtrace for each
        request that fails."""
        is_good = sys.exc_info()[0] is None
        done = self._inner.shutdown()
        if is_good and self._num_nodes > 1 and self._roster is None:
            left = self._faults.count_left(leaving=1)
            clock = SystemClock()
            deadline = clock.monotonic() + LEAVING_LIMIT_S
            while self._serves_store and left < self._num_nodes and clock.monotonic() < deadline:
                clock.sleep(_LOOK_S)
                left = self._faults.count_left()
        return done


def _wait_for_request(files: StopFiles) -> None:
    """What has signalled the workers may have signalled the supervisor too, which asks then."""
    clock = SystemClock()
    end = clock.monotonic() + REQUEST_LIMIT_S
    while not files.is_asked() and clock.monotonic() < end:
        clock.sleep(_LOOK_S)


class Admission:
    """Has the running group commit before newcomers come in, so that no work is lost."""

    def __init__(self, files: StopFiles, roster: RosterHandler | None, clock: Clock) -> None:
        self._files, self._roster, self._clock = files, roster, clock
        self._asked_at: float | None = None

    def new_attempt(self) -> None:
        """Forgets what the workers were asked: they were started anew, or nobody waits now."""
        if self._asked_at is not None:
            self._asked_at = None
            self._files.forget_resize()

    def look(self) -> None:
        """Asks the training once nodes wait, and admits them after its answer.

        Called many times a second, and never blocks. A training that does not speak the protocol is
        not asked.
        """
        if self._roster is None:
            return
        if self._roster.head.newcomers == 0:
            # They have gone again. A later stop must not take that answer for its own.
            self.new_attempt()
            return
        now = self._clock.monotonic()
        if not self._files.training_speaks():
            self._roster.admit()
        elif self._asked_at is None:
            if not self._files.is_asked():
                self._asked_at = now
                at = self._clock.wall()
                deadline = at + ADMISSION_LIMIT_S
                self._files.ask(protocol.STOP_REASON_RESIZE, at=at, deadline=deadline)
        elif self._files.has_answer() or now - self._asked_at > ADMISSION_LIMIT_S:
            self._roster.admit()


class JobFaults:
    """Worker faults of the whole job, counted in the rendezvous' store.

    A round that ended by a fault counts once, however many nodes saw one. Where the store does not
    answer, the node's own count is used.
    """

    def __init__(self, book: FaultBook) -> None:
        self._book = book
        self._own = 0
        self._round: Store | None = None
        self._job: Store | None = None
        self._agents: Store | None = None
        self._last: WorkerEnd | None = None

    def count(self, ends: tuple[WorkerEnd, ...]) -> GiveUp | None:
        """One more fault on this node; judges what is known of the whole job."""
        self._own += 1
        self._last = ends[0] if ends else None
        total = self._with_store(self._add, 0)
        return self._book.judge_count(max(self._own, total), self._last)

    def share(self, info: RendezvousInfo) -> GiveUp | None:
        """Uses the new round's store from now on, and judges what other nodes have counted."""
        if info.world_size == 1 and self._job is None:
            return None
        self._round = PrefixStore("launcher", info.store)
        self._agents = info.store
        self._job = PrefixStore("launcher/job", _base_of(info.store))
        total = self._with_store(lambda job, _: int(job.add(_FAULTS_KEY, 0)), 0)
        return self._book.judge_count(max(self._own, total), self._last)

    def tell(self, give_up: GiveUp) -> None:
        """Writes the reason for the other nodes, which only see a closed rendezvous."""
        self._with_store(lambda job, _: job.set(_VERDICT_KEY, give_up.reason.value), None)

    def told(self) -> Reason | None:
        """The reason that another node wrote."""

        def read(job: Store, _: Store) -> Reason | None:
            return Reason(job.get(_VERDICT_KEY).decode()) if job.check([_VERDICT_KEY]) else None

        return self._with_store(read, None)

    def count_left(self, leaving: int = 0) -> int:
        """How many nodes of the round need the store no more, ``leaving`` (1 or 0) added."""
        return self._with_store(lambda _, store: int(store.add(_LEFT_KEY, leaving)), 0)

    def a_peer_finishes(self, limit_s: float) -> bool:
        """Whether the workers of another node have all succeeded, or do so within ``limit_s``.

        Its agent then waits at torch's exit barrier and joins no further round. Only for stock
        backends.
        """
        clock, agents = SystemClock(), self._agents
        end = clock.monotonic() + limit_s
        while agents is not None:
            if self._with_store(lambda *_: bool(agents.check([ARRIVED_KEY])), False):
                return True
            if clock.monotonic() >= end:
                break
            clock.sleep(PEER_LOOK_S)
        return False

    def _add(self, job: Store, round_store: Store) -> int:
        first_to_say_so = int(round_store.add(_FAULT_IN_ROUND_KEY, 1)) == 1
        return int(job.add(_FAULTS_KEY, 1 if first_to_say_so else 0))

    def _with_store(self, act: Callable[[Store, Store], T], otherwise: T) -> T:
        if self._job is None or self._round is None:
            return otherwise
        try:
            return act(self._job, self._round)
        except (RuntimeError, ValueError):
            return otherwise


def _base_of(store: Store) -> Store:
    """The store beneath all prefixes, which outlives a round."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
