"""The node's own kind of roster handler: it decides what happens between two attempts.

torch's elastic agent calls ``next_rendezvous`` before each start of its workers, when the old ones
are dead. The handler then reports and counts why they died, and waits for the GPUs or ends the run.
"""

from __future__ import annotations

import contextlib
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)

from launcher.agent.membership import group
from launcher.agent.membership.handler import BACKEND, RosterHandler, create_handler
from launcher.agent.stopping import StopFiles
from launcher.agent.streams import say
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.worker_end import WorkerEnd

if TYPE_CHECKING:
    from launcher.agent.engine.node_state import Node

_LOOK_S = 0.05
REQUEST_LIMIT_S = 2.0
"""How long to wait for a stop request after a SIGTERM from elsewhere has ended workers."""
ADMISSION_LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""


def register_handler(node: Node) -> str:
    """Registers the handlers of this node with torch and returns the name of their backend."""

    def create(params: RendezvousParameters) -> RosterHandler:
        return create_handler(params, partial(NodeHandler, node), node.token)

    with contextlib.suppress(ValueError):  # at the second store
        rendezvous_handler_registry.register(BACKEND, create)
    return BACKEND


class NodeHandler(RosterHandler):
    """A roster's handler that tells the node what happens, and ends it with a reason."""

    def __init__(self, node: Node, **given: Any) -> None:
        super().__init__(**given)
        self._node = node
        node.roster = self
        self._files = StopFiles(node.attempts.node_dir)
        self._admission = Admission(self._files, self, SystemClock())
        self._has_run = False
        self._regroups = False
        self._blamed_peer: tuple[WorkerEnd, ...] = ()

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises ``RendezvousClosedError`` where ``node.ending`` says why this node ends."""
        node = self._node
        if self._has_run:
            self._judge_last_attempt()
            node.attempts.forget_speaker()
            self._admission.new_attempt()
            node.wait_for_gpus()
        node.enter("rendezvous")
        try:
            info = super().next_rendezvous()
        finally:
            self._tell_losses()
        self._regroups = False
        self._tell_lost_peer()
        node.on_rendezvous(info.rank, info.world_size)
        self._has_run = True
        return info

    def _judge_last_attempt(self) -> None:
        node = self._node
        if node.attempts.were_signalled():
            _wait_for_request(self._files)
        if self._files.is_asked() and not self._files.is_for_resize():
            # Not an error: the others re-form, so the rendezvous must stay open.
            raise SignalException("asked to stop", signal.SIGTERM)
        if node.attempts.have_succeeded():
            # The group re-forms, but this node's workers had ended well before that.
            self.finish()
            self.wait_until_closed()
            self._end(Ending(cause=Cause.COMPLETED))
        step = node.judge_attempt(regroups=self._regroups)
        if isinstance(step, Ending):
            if step.cause is not Cause.DISK_FULL:
                # A full disk ends this node alone: the others wait for it, or go on without it.
                self.close(group.FAILED)
            self._end(step)
        if step.cause is Cause.LOST_PEER:
            self._blamed_peer = node.ends
        else:
            node.on_restart(step.cause, node.ends)

    def _end(self, end: Ending) -> NoReturn:
        self._node.ending = end
        raise RendezvousClosedError

    def _tell_losses(self) -> bool:
        """Reports nodes that were lost since the last call; returns whether there were any."""
        losses = self.take_losses()
        for text in losses:
            self._node.ledger.write("node-lost", detail=text)
            say(text)
        return bool(losses)

    def _tell_lost_peer(self) -> None:
        """Counts a restart after workers blamed a peer; by now it is known if a node left."""
        ends, self._blamed_peer = self._blamed_peer, ()
        if ends and self.membership:
            is_fault = self.membership.cause is group.RoundCause.FAULT
            self._node.on_restart(Cause.WORKER_FAULT if is_fault else Cause.LOST_PEER, ends)

    def num_nodes_waiting(self) -> int:
        self._admission.look()
        waiting = super().num_nodes_waiting()
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
        clock.sleep(_LOOK_S)


class Admission:
    """Has the running group commit before newcomers come in, so that no work is lost."""

    def __init__(self, files: StopFiles, roster: RosterHandler, clock: Clock) -> None:
        self._files, self._roster, self._clock = files, roster, clock
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
        if self._roster.status.newcomers == 0:
            # The newcomers have gone. A later stop must not take this request's answer for its own.
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
