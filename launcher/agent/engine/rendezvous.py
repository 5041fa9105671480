"""The roster, as torch's elastic agent takes a rendezvous; the training commits before new nodes
come in. Imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from launcher.agent.membership import group
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Membership
from launcher.agent.stopping import StopFiles
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.node_plan import ROSTER

if TYPE_CHECKING:
    from launcher.agent.engine.node_state import Node

ADMISSION_LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""


def describe(membership: Membership) -> RendezvousInfo:
    """A membership, as torch's agent takes it."""
    store: Any = AgentStore(membership)
    master = RendezvousStoreInfo(membership.first.addr, membership.first.port)
    return RendezvousInfo(store, membership.rank, membership.size, master)


class AgentStore:
    """Answers what torch's agent asks a store, without other nodes: the coordinator has sent the
    ranks already.

    torch's exit barrier, with its limit of 300 s, passes at once: ``shutdown`` waits instead.
    """

    timeout = 300.0

    def __init__(self, membership: Membership) -> None:
        place = [membership.before, membership.workers]
        self._ranks = json.dumps([*place, *place]).encode()
        self._own_value = b""

    def set_timeout(self, timeout: object) -> None:
        """Nothing takes time here."""

    def set(self, key: str, value: bytes) -> None:
        self._own_value = value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """On the first node, torch counts the workers by these values."""
        return [self._own_value for _ in keys]

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
        return ROSTER

    def get_run_id(self) -> str:
        return self._roster.run_id

    def is_closed(self) -> bool:
        return self._roster.is_closed()

    def set_closed(self) -> None:
        self._roster.close(group.FINISHED)

    def shutdown(self) -> bool:
        return self._roster.shutdown()

    def next_rendezvous(self) -> RendezvousInfo:
        membership = self._roster.meet()
        assert membership is not None
        return describe(membership)

    def num_nodes_waiting(self) -> int:
        """Above zero, torch's agent forms the group again without using up a restart."""
        return int(self._roster.must_meet())


class Admission:
    """Has the running group commit before newcomers come in, so that no work is lost."""

    def __init__(self, files: StopFiles, node: Node, clock: Clock) -> None:
        self._files, self._node, self._clock = files, node, clock
        self._requested_at: float | None = None

    def new_attempt(self) -> None:
        """Withdraws the request: the workers were started anew, or nobody waits any more."""
        if self._requested_at is not None:
            self._requested_at = None
            self._files.forget_resize()

    def poll(self) -> None:
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
        if not self._files.training_will_answer():
            roster.say("admit")
        elif self._requested_at is None:
            if not self._files.is_requested():
                self._requested_at = now
                at = self._clock.wall()
                deadline = at + ADMISSION_LIMIT_S
                self._files.write_request(protocol.STOP_REASON_RESIZE, at=at, deadline=deadline)
        elif self._files.has_answer() or now - self._requested_at > ADMISSION_LIMIT_S:
            roster.say("admit")
