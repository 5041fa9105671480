"""What happens on a node between two attempts: why workers died is judged, and the training commits
before new nodes come in.

torch's elastic agent calls ``next_rendezvous`` before each start of its workers, when the old ones
are dead. The handler then reports and counts why they died, and waits for the GPUs or ends the run.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from launcher.agent.endings import DONE, OTHERS_FINISHED
from launcher.agent.membership import group
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Membership
from launcher.agent.stopping import StopFiles
from launcher.agent.streams import say
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.node_plan import NodePlan, Static
from launcher.contract.waits import SOON_S
from launcher.contract.worker_end import WorkerEnd

if TYPE_CHECKING:
    from launcher.agent.engine.node_state import Node

BACKEND = "roster"
REQUEST_LIMIT_S = 2.0
"""How long to wait for a stop request after a SIGTERM from elsewhere has ended workers."""
ADMISSION_LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""


def register_handler(node: Node) -> str:
    """Registers the handlers of this node with torch and returns the name of their backend."""
    with contextlib.suppress(ValueError):  # at the second store
        rendezvous_handler_registry.register(BACKEND, partial(NodeHandler, node))
    return BACKEND


def name_endpoint(plan: NodePlan) -> str:
    """Where the node's rendezvous is, as torch writes it."""
    match plan.rendezvous:
        case Static(master_addr=host, master_port=port):
            pass
        case elastic:
            host, port = elastic.endpoint_host, elastic.endpoint_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configure(plan: NodePlan) -> dict[str, Any]:
    """What torch is told of the node's rendezvous; ``NodeHandler`` has it from the plan."""
    # A number: torch compares it with 0 to find the node that serves the store.
    return {"rank": plan.node_index} if isinstance(plan.rendezvous, Static) else {}


def describe(mine: Membership) -> RendezvousInfo:
    """A membership, as torch's agent takes it."""
    store: Any = AgentStore(mine)
    master = RendezvousStoreInfo(mine.first.addr, mine.first.port)
    return RendezvousInfo(store, mine.rank, mine.size, master)


class AgentStore:
    """What torch's agent needs of a store: the ranks of its workers, which it is told already.

    Its exit barrier, which waits for 300 s at most, lets it pass at once: ``shutdown`` waits.
    """

    timeout = 300.0

    def __init__(self, mine: Membership) -> None:
        place = [mine.before, mine.workers]
        self._ranks = json.dumps([*place, *place]).encode()
        self._own = b""

    def set_timeout(self, timeout: object) -> None:
        """Nothing takes time here."""

    def set(self, key: str, value: bytes) -> None:
        self._own = value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """So that the first node can count the workers; it is then told the ranks, too."""
        return [self._own for _ in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Nobody asks for them."""

    def get(self, key: str) -> bytes:
        return self._ranks

    def add(self, key: str, amount: int) -> int:
        return 0

    def wait(self, keys: Sequence[str], *timeout: Any) -> None:
        """Not for other nodes."""


class RosterHandler(RendezvousHandler):
    """The roster for torch's agent: a node's part in the group, which may change meanwhile."""

    def __init__(self, part: Callable[[], Client]) -> None:
        self._part = part

    @property
    def _roster(self) -> Client:
        return self._part()

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._roster.run_id

    def is_closed(self) -> bool:
        return self._roster.is_closed()

    def set_closed(self) -> None:
        self._roster.close(group.FINISHED)

    def shutdown(self) -> bool:
        return self._roster.shutdown()

    def next_rendezvous(self) -> RendezvousInfo:
        mine = self._roster.meet()
        assert mine is not None
        return describe(mine)

    def num_nodes_waiting(self) -> int:
        """Above zero, torch's agent forms the group again without using up a restart."""
        return int(self._roster.must_meet())


class NodeHandler(RosterHandler):
    """Also decides what happens between two attempts of the node."""

    def __init__(self, node: Node, _: RendezvousParameters) -> None:
        assert node.healer.rounds
        self._node = node
        node.roster = first = node.healer.rounds.open_roster()
        super().__init__(lambda: node.roster or first)
        self._files = StopFiles(node.attempts.node_dir)
        self._admission = Admission(self._files, node, SystemClock())
        self._has_run = False
        self._regroups = False
        self._blamed_peer: tuple[WorkerEnd, ...] = ()

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises ``RendezvousClosedError`` where ``node.ending`` says why this node ends."""
        node = self._node
        comes_too_late = node.healer.comes_too_late
        with node.healer.instead():
            if comes_too_late:
                self._roster.leave()
                self._end(OTHERS_FINISHED)
            if self._has_run:
                self._judge_last_attempt()
                node.attempts.forget_speaker()
                self._admission.new_attempt()
                node.wait_for_gpus()
            node.enter("rendezvous")
            try:
                joins = self._roster.may_expect
                mine = self._roster.expect() if joins else self._roster.meet()
            finally:
                self._tell_losses()
            node.healer.joins = joins
        assert mine is not None
        self._regroups = False
        self._tell_lost_peer()
        node.on_rendezvous(mine.rank, mine.size)
        self._has_run = True
        return describe(mine)

    def _judge_last_attempt(self) -> None:
        node = self._node
        if node.attempts.were_signalled():
            _wait_for_request(self._files)
        if self._files.is_asked() and not self._files.is_for_resize():
            # Not an error: the others re-form, so the rendezvous must stay open.
            raise SignalException("asked to stop", signal.SIGTERM)
        if node.attempts.have_succeeded():
            # The group re-forms, but this node's workers had ended well before that.
            self._roster.say("finish")
            self._roster.wait_until_closed()
            self._end(DONE)
        node.enter("restart")
        attempts, regroups = node.attempts, self._regroups
        attempts.ends = attempts.end(regroups=regroups)
        node.tell_ends(attempts.ends)
        step = node.judge.judge(attempts.ends, attempts.steps(), regroups=regroups)
        if isinstance(step, Ending):
            if step.cause is not Cause.DISK_FULL:
                # A full disk ends this node alone: the others wait for it, or go on without it.
                self._roster.close(group.FAILED)
            self._end(step)
        if step.cause is Cause.LOST_PEER:
            self._blamed_peer = attempts.ends
        else:
            node.on_restart(step.cause, attempts.ends)

    def _end(self, end: Ending) -> NoReturn:
        self._node.ending = end
        raise RendezvousClosedError

    def _tell_losses(self) -> bool:
        """Reports nodes that were lost since the last call; returns whether there were any."""
        losses = self._roster.take_losses()
        for text in losses:
            self._node.ledger.write("node-lost", detail=text)
            say(text)
        return bool(losses)

    def _tell_lost_peer(self) -> None:
        """Counts a restart after workers blamed a peer; by now it is known if a node left."""
        ends, self._blamed_peer = self._blamed_peer, ()
        if ends and (membership := self._roster.membership):
            is_fault = membership.cause is group.RoundCause.FAULT
            self._node.on_restart(Cause.WORKER_FAULT if is_fault else Cause.LOST_PEER, ends)

    def num_nodes_waiting(self) -> int:
        healer, roster = self._node.healer, self._roster
        if healer.comes_too_late:
            return 1
        if healer.can_heal and not roster.is_closed():
            if roster.status.newcomers:
                # The workers go on until the newcomers are ready: there is nothing to commit.
                roster.say("admit")
            self._tell_losses()
            return 0
        self._admission.look()
        waiting = int(bool(healer.refused)) or super().num_nodes_waiting()
        if self._tell_losses():
            # The workers are ended next, and only they know in which collective they wait.
            self._node.looker.take("loss", stacks=False)
        self._regroups = self._regroups or waiting > 0
        return waiting


def _wait_for_request(files: StopFiles) -> None:
    """Waits for the supervisor's request: it may have got the same signal as the workers."""
    clock = SystemClock()
    end = clock.monotonic() + REQUEST_LIMIT_S
    while not files.is_asked() and clock.monotonic() < end:
        clock.sleep(SOON_S)


class Admission:
    """Has the running group commit before newcomers come in, so that no work is lost."""

    def __init__(self, files: StopFiles, node: Node, clock: Clock) -> None:
        self._files, self._node, self._clock = files, node, clock
        self._asked_at: float | None = None

    def new_attempt(self) -> None:
        """Withdraws the request: the workers were started anew, or nobody waits any more."""
        if self._asked_at is not None:
            self._asked_at = None
            self._files.forget_resize()

    def look(self) -> None:
        """Asks the training once nodes wait, and admits them after its answer.

        Called many times a second, and never blocks. A training that does not speak the protocol is
        not asked.
        """
        roster = self._node.roster
        assert roster
        if roster.status.newcomers == 0:
            # The newcomers have gone. A later stop must not take this request's answer for its own.
            self.new_attempt()
            return
        now = self._clock.monotonic()
        if not self._files.training_speaks():
            roster.say("admit")
        elif self._asked_at is None:
            if not self._files.is_asked():
                self._asked_at = now
                at = self._clock.wall()
                deadline = at + ADMISSION_LIMIT_S
                self._files.ask(protocol.STOP_REASON_RESIZE, at=at, deadline=deadline)
        elif self._files.has_answer() or now - self._asked_at > ADMISSION_LIMIT_S:
            roster.say("admit")
