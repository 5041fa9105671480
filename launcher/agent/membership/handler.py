"""``roster`` for torch's elastic agent: a ``RendezvousHandler`` on top of the coordinator's client.

``num_nodes_waiting() > 0`` makes the agent re-form the group without using up a restart.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from launcher.agent.membership import group
from launcher.agent.membership.client import Client, answering_port
from launcher.agent.membership.group import Membership
from launcher.agent.membership.process import CoordinatorProcess
from launcher.agent.membership.settings import Member

BACKEND = "roster"
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


class RosterHandler(Client, rdzv.RendezvousHandler):
    """One node's part in the run's membership."""

    def __init__(
        self,
        *at: Any,
        addr: str,
        served: CoordinatorProcess | None = None,
        **more: Any,
    ) -> None:
        """``at`` and ``more`` as for a ``Client``, and ``addr`` is this node's address.

        ``served`` is the coordinator if it runs here; it ends with this.
        """
        super().__init__(*at, **more)
        self._served, rules = served, self._rules
        # Ended by the resolver's own limit.
        self._addr = addr or socket.getfqdn()
        if not rules.fence_dir and not rules.rules_out_another(rules.min_nodes):
            log.warning(
                "no shared checkpoint folder fences this run: after a loss only more than half of "
                f"the last nodes, or more than {rules.max_nodes - rules.min_nodes}, can go on; "
                f"with a checkpoint_dir that all nodes share, any {rules.min_nodes} can"
            )
        try:
            self.begin(rules.connect_timeout_s + 1.0)
        except BaseException:
            self.end()
            raise

    # -- torch's interface -----------------------------------------------------------------------
    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self.run_id

    def next_rendezvous(self) -> rdzv.RendezvousInfo:
        """Blocks until this node is in a sealed membership; raises as torch documents.

        Also ``ReplacedError``; ``RendezvousStateError`` where the fence cannot be written.
        """
        mine = self.meet()
        assert mine is not None
        return describe(mine)

    def expect(self) -> Membership:
        """This node's likely place in the group that runs, for workers that start before it asks.

        They are told their true place once the group has formed with this node.
        """
        rules = self._rules
        with socket.socket() as held:
            held.bind(("", 0))
            port = int(held.getsockname()[1])
        return Membership(
            generation=self.status.generation,
            rank=rules.node_index,
            size=rules.max_nodes,
            cause=group.RoundCause.JOINED,
            first=Member(self.name, self._addr, port, workers=rules.workers),
            before=rules.node_index * rules.workers,
            workers=rules.max_nodes * rules.workers,
        )

    @property
    def may_expect(self) -> bool:
        """Whether this node was in no group, and one runs whose workers can let it in at once."""
        return self.membership is None and self.status.heals and not self.status.closed

    def meet(self, is_over: Callable[[], bool] = lambda: False) -> Membership | None:
        """Asks for a rendezvous and waits for it; None once ``is_over``, which is asked again
        whenever ``wake`` was called. Otherwise as ``next_rendezvous``.
        """
        rules = self._rules
        limit_s = (self.last.generation and rules.rejoin_timeout_s) or rules.join_timeout_s
        self.check()
        # Held until the membership is sealed, so that no other process takes the port.
        with socket.socket() as held:
            held.bind(("", 0))
            own = {"addr": self._addr, "port": int(held.getsockname()[1])}
            own |= {"answers": answering_port(self._addr), "workers": rules.workers}
            self.join(limit_s, **own)
            self.wait_for(lambda: self.answer or is_over())
        if (mine := self.answer) is None:
            return None
        if not isinstance(mine, Membership):
            raise REFUSALS[mine["refused"]](mine["text"])
        told = "roster: generation %d, rank %d of %d, because of: %s"
        log.info(told, mine.generation, mine.rank, mine.size, mine.cause.value)
        return mine

    def num_nodes_waiting(self) -> int:
        """Above zero when the group has to re-form; never blocks.

        Raises ``RendezvousConnectionError`` when the coordinator is gone or silent for too long.
        """
        status, rules = self.status, self._rules
        is_last = rules.max_nodes - status.finished < rules.min_nodes
        if status.closed == group.FINISHED or (self.is_gone and self.is_member and is_last):
            # The workers go on to their end where no other group could be formed.
            return 0
        self.check()
        return int(self.is_closed() or (self.membership is not None and not self.is_member))

    def is_closed(self) -> bool:
        return self.status.closed != ""

    def set_closed(self) -> None:
        """Ends the run for all nodes: none will get another rendezvous."""
        self.close(group.FINISHED)

    def shutdown(self) -> bool:
        """Ends this node's part, once; what the others learn depends on how it ends.

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
        super().end()
        if self._served is not None:
            self._served.stop()

    # -- the engine's interface ------------------------------------------------------------------
    def take_losses(self) -> tuple[str, ...]:
        """The losses of nodes that were told since the last call, in words."""
        return tuple(self.losses.popleft() for _ in range(len(self.losses)))

    def leave(self) -> bool:
        """This node goes and says so; the others re-form without it. Idempotent, takes <= 2 s."""
        self.say("leave")
        return self.settle(lambda: self.alone is not None, PARTING_LIMIT_S)

    def wait_until_closed(self) -> None:
        """Until nobody can join a round, or the coordinator is gone; signal handlers may raise."""
        with contextlib.suppress(rdzv.RendezvousConnectionError):
            self.wait_for(self.is_closed)

    def close(self, reason: str) -> bool:
        """Ends the run for all nodes; any reason but ``finished`` also stops running groups."""
        self.say("close", reason=reason)
        return self.settle(self.is_closed, PARTING_LIMIT_S)

    # -- within ----------------------------------------------------------------------------------
    @property
    def is_member(self) -> bool:
        """Whether this node's membership is the newest, and no round was opened since."""
        mine, status = self.membership, self.status
        return mine is not None and status.sealed and status.generation == mine.generation

    @property
    def is_left_behind(self) -> bool:
        """Whether the others have formed a group without this node."""
        mine, status = self.membership, self.status
        return mine is not None and status.sealed and status.generation > mine.generation


def describe(mine: Membership) -> rdzv.RendezvousInfo:
    """A membership, as torch's agent takes it."""
    store: Any = AgentStore(mine)
    master = rdzv.RendezvousStoreInfo(mine.first.addr, mine.first.port)
    return rdzv.RendezvousInfo(store, mine.rank, mine.size, master)


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
