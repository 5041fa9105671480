"""The thread around the state machine. It alone talks to the store, and may hang with the store.

The caller's side only posts events and reads the last state, so that a frozen store blocks it no
longer than the silence limit.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
)

from launcher.agent.roster import events
from launcher.agent.roster.decide import plan_lines
from launcher.agent.roster.lifelines import Lifelines
from launcher.agent.roster.membership import Cause, Phase, index_of
from launcher.agent.roster.settings import WATCHED, Rules
from launcher.agent.roster.state_machine import start, step
from launcher.agent.roster.store import StoreClient
from launcher.agent.roster.view import State, lost, pause_s
from launcher.contract.clock import Clock

Notice = events.Deliver | events.Refuse | events.TakeGeneration
log = logging.getLogger(__name__)


class RosterThread:
    """Runs one node's state machine in a thread, from ``begin`` until ``end``."""

    def __init__(
        self, rules: Rules, connect: Callable[[], StoreClient], clock: Clock, where: str
    ) -> None:
        self._connect, self._clock, self._where = connect, clock, where
        self._silence_s = rules.silence_s
        self._changed = threading.Condition()
        self._events: deque[events.Event] = deque()
        self.state = start(rules, rules.node_index, nonce=uuid.uuid4().hex[:8])
        """What was known at the last pulse."""
        self.losses: deque[str] = deque()
        """Losses of nodes that this node saw, in words; whoever reports one removes it."""
        self._lines = Lifelines(self.post)
        self._lines_of = "", ""
        self._notice: Notice | None = None
        self._failure: RendezvousError | None = None
        self._heard_at = self._checked_at = clock.monotonic()
        self._connected = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="roster", daemon=True)

    # -- the caller's side ---------------------------------------------------------------------
    def begin(self, timeout_s: float) -> None:
        """Starts the thread and waits for the store; raises ``RendezvousConnectionError``."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._connected or self._failure, timeout_s)
            if not self._connected and self._failure is None:
                self._failure = RendezvousConnectionError(
                    f"the rendezvous store at {self._where} did not answer within {timeout_s:g} s"
                )
        self.check()

    def post(self, event: events.Event) -> None:
        """Hands an event to the machine, now rather than at the next pulse."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def ask(self, event: events.Event) -> None:
        """Posts an event whose answer ``next_notice`` waits for; older answers are dropped."""
        with self._changed:
            self._notice = None
        self.post(event)

    def ask_nodes(self) -> None:
        """Has the watched nodes dialled now: a worker may have failed because one of them ended."""
        self._lines.ask(WATCHED)

    def check(self) -> None:
        """Raises the error that ended the connection, or one if the store is silent too long."""
        with self._changed:
            now = self._clock.monotonic()
            if now - self._checked_at > self._silence_s / 2:
                # This process itself stood still, so the store's silence is not known.
                self._heard_at = max(self._heard_at, now - self._silence_s / 2)
            self._checked_at = now
            silent_s = now - self._heard_at
            if self._failure is None and self._connected and silent_s > self._silence_s:
                self._failure = RendezvousConnectionError(
                    f"the rendezvous store at {self._where} has been silent for {silent_s:.1f} s"
                )
            if self._failure is not None:
                raise self._failure

    def next_notice(self) -> Notice:
        """Blocks until the machine has a notice for the caller; raises when the store is gone."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._notice or self._failure, self._silence_s / 4)
                notice, self._notice = self._notice, None
            if notice is not None:
                return notice
            self.check()

    def settle(self, done: Callable[[State], bool], timeout_s: float) -> bool:
        """Waits until the state is ``done``; False if it is not in time, or the store is lost."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.state) or self._failure, timeout_s)
            return done(self.state)

    def end(self, timeout_s: float = 1.0) -> None:
        """Stops the thread; one that hangs in a frozen store is left behind as a daemon."""
        self._lines.end()
        with self._changed:
            self._ending = True
            timeout_s = 0.0 if self._failure is not None else timeout_s
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # -- the thread's side ---------------------------------------------------------------------
    def _run(self) -> None:
        try:
            client = self._connect()
            with self._changed:
                self._connected, self._heard_at = True, self._clock.monotonic()
                self._changed.notify_all()
            while not self._ending:
                self._pulse(client)
        except RendezvousError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the roster's thread failed")
            self._fail(RendezvousStateError(f"the roster's thread failed: {error!r}"))

    def _pulse(self, client: StoreClient) -> None:
        began = self._clock.monotonic()
        self._handle(client, events.PlainEvent.PULSE)
        end = began + pause_s(self.state, began)
        while not self._ending:
            with self._changed:
                left_s = end - self._clock.monotonic()
                self._changed.wait_for(lambda: self._events or self._ending, max(0.0, left_s))
                event = self._events.popleft() if self._events else None
            if event is None:
                return
            self._handle(client, event)
            end = min(end, began + pause_s(self.state, began))

    def _handle(self, client: StoreClient, event: events.Event) -> None:
        """Handles an event, and one after the other all operations that follow from it."""
        following: events.Event | None = event
        while following is not None and not self._ending:
            state, actions = step(self.state, following, self._clock.monotonic())
            operation, following = None, None
            for action in actions:
                if isinstance(action, events.Write | events.Enlist | events.Fetch | events.Swap):
                    operation = action
                else:
                    with self._changed:
                        self._notice = action
            self._note_losses(self.state, state)
            with self._changed:
                self.state = state
                self._changed.notify_all()
            self._follow(state)
            if operation is not None:
                following = client.carry_out(operation)
                self._heard_at = self._clock.monotonic()

    def _follow(self, state: State) -> None:
        """Keeps connections to the nodes that this one watches now."""
        known = state.ring_key, state.text
        if known != self._lines_of and (members := plan_lines(state)) is not None:
            self._lines_of = known
            self._lines.follow(members, presumed=self._may_presume(state))

    def _may_presume(self, state: State) -> bool:
        """Whether nodes that this one has not watched yet would answer if they lived.

        They would around a second store, and if others have just died and a connection once stood.
        """
        head = state.head
        if head is None or not head.members:
            return True
        loses = head.phase is Phase.FORMING and head.cause is Cause.LOST
        return loses and self._lines.has_stood

    def _note_losses(self, old: State, new: State) -> None:
        """Notes why nodes that this node has watched were struck off."""
        if old.head is None or new.head is None or old.head.gone == new.head.gone:
            return
        seen = lost(old)
        for seat, why in new.head.gone.items():
            if seat in old.head.gone or why != Cause.LOST.value or seat not in seen:
                continue
            told = self._lines.why(seat) if seat in old.closed_lines else ""
            how = told or f"silent for {old.beats[seat].silent_s:.1f} s"
            self.losses.append(f"node {index_of(seat)} is lost: {how}")

    def _fail(self, error: RendezvousError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
