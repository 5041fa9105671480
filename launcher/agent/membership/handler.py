"""``roster`` for torch's elastic agent: a ``RendezvousHandler`` on top of the coordinator's client.

``num_nodes_waiting() > 0`` makes the agent re-form the group without using up a restart: so it
learns of a lost node, a newcomer or a departure. Only public interfaces of torch are used.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from launcher.agent.membership.client import (
    Client,
    GoneError,
    Refused,
    Told,
    answering_port,
)
from launcher.agent.membership.group import (
    FAILED,
    FENCED_OUT,
    FINISHED,
    GroupStatus,
    Membership,
    Phase,
)
from launcher.agent.membership.process import CoordinatorProcess, UnservedError, serve_forked
from launcher.agent.membership.settings import IDENTICAL, Last, Rules, format_members, parse_rules
from launcher.contract.clock import SystemClock

BACKEND = "roster"
PARTING_LIMIT_S = 2.0
KEEPERS = 8
"""Nodes with lower indexes may have to serve next, and know all members."""
EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""The prefix of the barrier's keys. If torch renamed it, torch's own barrier would be used."""
log = logging.getLogger(__name__)


class ReplacedError(rdzv.RendezvousClosedError):
    """Another node came with this node's index, and is a member in its place."""


REFUSALS: Mapping[str, type[Exception]] = {
    "closed": rdzv.RendezvousClosedError,
    "timeout": rdzv.RendezvousTimeoutError,
    "replaced": ReplacedError,
    "state": rdzv.RendezvousStateError,
}


@contextlib.contextmanager
def _as_torch_says() -> Iterator[None]:
    try:
        yield
    except (GoneError, UnservedError) as error:
        raise rdzv.RendezvousConnectionError(str(error)) from error


def create_handler(
    params: rdzv.RendezvousParameters,
    make: Callable[..., RosterHandler] | None = None,
    token: str = "",
) -> RosterHandler:
    """Called by torch's registry; raises what ``parse_rules`` raises for a wrong configuration.

    Every key of ``params.config`` is described in ``Rules``. With ``is_host`` the coordinator is
    started here, unless something serves the endpoint already.
    """
    rules = parse_rules(params.config, min_nodes=params.min_nodes, max_nodes=params.max_nodes)
    host, port = parse_rendezvous_endpoint(params.endpoint, 29400)
    served = None
    if rules.is_host and rules.coordinator_pid:
        served = CoordinatorProcess(pid=rules.coordinator_pid, port=port)
    elif rules.is_host:
        with contextlib.suppress(UnservedError):
            served = serve_forked(port, rules, params.run_id, token)
    port = served.port if served else port
    client = Client(host, port, params.run_id, rules, SystemClock(), token=token)
    try:
        # Ended by the resolver's own limit.
        addr = params.local_addr or socket.getfqdn()
        return (make or RosterHandler)(client=client, rules=rules, addr=addr, served=served)
    except BaseException:
        client.end()
        if served:
            served.stop()
        raise


class RosterHandler(rdzv.RendezvousHandler):
    """One node's part in the run's membership; made by ``create_handler``."""

    def __init__(
        self, *, client: Client, rules: Rules, addr: str, served: CoordinatorProcess | None
    ) -> None:
        self._client, self._rules, self._addr, self._served = client, rules, addr, served
        self._clock = SystemClock()
        self._told_epoch = 0
        self._finishing = False
        self.membership: Membership | None = None
        """What ``next_rendezvous`` returned last."""
        if not rules.fenced and not rules.rules_out_another(rules.min_nodes):
            log.warning(
                "no shared checkpoint folder fences this run: after a loss only more than half of "
                "the last nodes, or more than %d, can go on; with a checkpoint_dir that all nodes "
                "share, any %d can",
                rules.max_nodes - rules.min_nodes,
                rules.min_nodes,
            )
        with _as_torch_says():
            keeps = rules.is_host or rules.node_index < KEEPERS
            client.begin(rules.connect_timeout_s + 1.0, keeps=keeps)

    # -- torch's interface -----------------------------------------------------------------------
    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._client.run_id

    def next_rendezvous(self) -> rdzv.RendezvousInfo:
        """Blocks until this node is in a sealed membership; raises as torch documents.

        ``RendezvousClosedError`` (``ReplacedError`` if replaced), ``RendezvousTimeoutError``,
        ``RendezvousStateError`` (also where the fence cannot be written),
        ``RendezvousConnectionError``.
        """
        rules = self._rules
        was_in = self.membership is not None or rules.last != ""
        limit_s = (was_in and rules.rejoin_timeout_s) or rules.join_timeout_s
        with _as_torch_says():
            self._client.check()
            # Held until the membership is sealed, so that no other process takes the port.
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
                held.bind(("", 0))
                port = int(held.getsockname()[1])
                member = (self._addr, port, answering_port(self._addr), rules.workers)
                self._client.join(member, limit_s)
                answer = self._client.next_answer()
        if isinstance(answer, Refused):
            raise REFUSALS[answer.kind](answer.text)
        return self._entered(answer)

    def num_nodes_waiting(self) -> int:
        """Above zero when the group has to re-form; never blocks on the coordinator.

        Raises ``RendezvousConnectionError`` when it is gone or silent for too long.
        """
        try:
            with _as_torch_says():
                self._client.check()
        except rdzv.RendezvousConnectionError:
            if self._ends_alone():
                return 0
            raise
        told, status = self._client.told, self.status
        if not told.entered:
            return 0
        if status.phase is Phase.CLOSED:
            return int(status.closed != FINISHED)
        waiting = status.phase is Phase.FORMING or status.epoch != told.entered
        if waiting and status.epoch != self._told_epoch:
            self._told_epoch = status.epoch
            log.info("roster: the group re-forms, because of: %s", status.cause.value)
        return int(waiting)

    def is_closed(self) -> bool:
        return self.status.phase is Phase.CLOSED

    def set_closed(self) -> None:
        """Ends the run for all nodes: none will get another rendezvous."""
        self.close(FINISHED)

    def shutdown(self) -> bool:
        """Ends this node's part, once; what the others learn depends on how it ends.

        After success it waits, however long, until the others have finished too: the coordinator
        may run here. While ``ChildFailedError`` propagates, the run is closed and the others stop.
        With any other exception, or when this node is no member, it just leaves.
        """
        error = sys.exc_info()[1]
        current = self.membership is not None and self.membership.epoch == self.status.epoch
        try:
            self._client.check()
        except GoneError:
            parted = False
        else:
            if isinstance(error, ChildFailedError):
                self.close(FAILED)
            elif error is None and (current or self._finishing):
                self.finish()
                self.wait_until_closed()
            parted = self.leave()
        is_over = self.is_closed() or isinstance(error, rdzv.RendezvousTimeoutError)
        if parted and is_over and self._served is not None:
            # Nodes that wait learn here that the run is over.
            with contextlib.suppress(GoneError):
                while not self._client.settle(lambda told: told.alone, 1.0):
                    self._client.check()
        self._client.end()
        if self._served is not None:
            self._served.stop()
        return parted

    # -- the engine's interface ------------------------------------------------------------------
    @property
    def status(self) -> GroupStatus:
        """Where the run stands, as the coordinator told last."""
        return self._client.told.status or GroupStatus()

    @property
    def is_fenced_out(self) -> bool:
        """Whether the run was closed here because it goes on around another coordinator."""
        return self.status.closed == FENCED_OUT

    def take_losses(self) -> tuple[str, ...]:
        """The losses of nodes that were told since the last call, in words."""
        losses = self._client.told.losses
        return tuple(losses.popleft() for _ in range(len(losses)))

    def carried(self) -> dict[str, str]:
        """Settings for the handler of a next coordinator, which knows nothing of the run."""
        if self.membership is None:
            return {}
        status, mine = self.status, self.membership
        is_newest = status.generation == mine.generation
        majority_of = status.majority_of if is_newest else mine.size
        last = Last(mine.generation, majority_of, status.faults, status.finished)
        return {"last": json.dumps(last), "last_members": format_members(mine.members)}

    def admit(self) -> None:
        """The running group has committed: the nodes that wait (``status.newcomers``) come in."""
        self._client.say("admit")

    def leave(self) -> bool:
        """This node goes and says so; the others re-form without it. Idempotent, takes <= 2 s."""
        self._client.say("leave")
        return self._client.settle(lambda told: told.parted, PARTING_LIMIT_S)

    def finish(self) -> None:
        """This node's workers have all succeeded: it joins no further round. Takes <= 2 s."""
        self._finishing = True
        self._client.say("finish")
        self._client.settle(lambda told: told.finished or _is_closed(told), PARTING_LIMIT_S)

    def leave_finished(self) -> None:
        """Leaves a group whose other members still work; this node's workers have succeeded."""
        self.finish()
        self.leave()

    def wait_until_closed(self) -> None:
        """Blocks until nobody can join another round, or the coordinator is gone.

        Signal handlers run meanwhile, and may raise.
        """
        with contextlib.suppress(GoneError):
            while not self._client.settle(_is_closed, 1.0):
                self._client.check()

    def close(self, reason: str) -> bool:
        """Ends the run for all nodes; any reason but ``finished`` also stops running groups."""
        self._client.say("close", reason=reason)
        return self._client.settle(_is_closed, PARTING_LIMIT_S)

    # -- within ----------------------------------------------------------------------------------
    def _ends_alone(self) -> bool:
        """Whether the workers can go on without a coordinator: no other group could be formed."""
        status, told = self.status, self._client.told
        if not told.entered or told.entered != status.epoch or status.phase is Phase.FORMING:
            return False
        return status.closed == FINISHED or (status.finished > 0 and not status.may_form)

    def _entered(self, membership: Membership) -> rdzv.RendezvousInfo:
        self.membership = membership
        log.info(
            "roster: epoch %d, generation %d, rank %d of %d, because of: %s",
            membership.epoch,
            membership.generation,
            membership.rank,
            membership.size,
            membership.cause.value,
        )
        # torch's agent then numbers the workers without asking the others.
        os.environ.pop(IDENTICAL, None)
        if membership.identical:
            os.environ[IDENTICAL] = "1"
        first = membership.first
        store: Any = AgentStore(self._client, self.finish, self.wait_until_closed)
        return rdzv.RendezvousInfo(
            store,
            membership.rank,
            membership.size,
            rdzv.RendezvousStoreInfo(first.addr, first.port),
        )


def _is_closed(told: Told) -> bool:
    return told.status is not None and told.status.phase is Phase.CLOSED


class AgentStore:
    """What torch's agent needs of a store, with another exit barrier.

    At torch's own the agent waits 300 s at most, and runs no signal handlers; then it ends. Here it
    waits while another member works, and a signal ends the wait.
    """

    def __init__(
        self, client: Client, finish: Callable[[], None], wait: Callable[[], None]
    ) -> None:
        self._client, self._finish, self._wait = client, finish, wait
        self.timeout = timedelta(seconds=300)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        text = value if isinstance(value, str) else value.decode("latin-1")
        self._client.set_value(key, text)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def get(self, key: str) -> bytes:
        if key.startswith(EXIT_BARRIER):
            # How torch 2.4 waits at the barrier.
            self._wait()
            return b""
        with _as_torch_says():
            return self._client.get_value(key, self.timeout.total_seconds()).encode("latin-1")

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        """Only at the exit barrier: nothing else of torch's agent counts in its store."""
        if not key.startswith(EXIT_BARRIER):
            raise NotImplementedError(f"torch's agent counts {key} in its store")
        self._finish()
        return 0

    def wait(self, keys: Sequence[str], *timeout: Any) -> None:
        for key in keys:
            self.get(key)
