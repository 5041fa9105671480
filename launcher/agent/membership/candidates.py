"""How a node finds the run's coordinator. If none serves yet, the next candidate starts one.

The plan names the candidates. Nodes whose addresses the plan cannot know announce their coordinator
in a folder that all nodes see.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.agent import addresses
from launcher.agent.addresses import LOOPBACK
from launcher.agent.membership.coordinator import SIGN_S
from launcher.agent.membership.group import parse_rules
from launcher.agent.membership.process import CoordinatorProcess, UnservedError, ask, serve_forked
from launcher.agent.membership.wire import WireError
from launcher.contract.clock import Clock
from launcher.contract.node_plan import NEVER_S, Elastic, NodeTask
from launcher.contract.records import parse_object, parse_record
from launcher.contract.waits import LOOK_S

CONNECT_LIMIT_S = 15.0
"""How long a later coordinator may take to answer. It is shorter than for the first one, because
its node runs already and has lost the last coordinator too."""
ANSWER_LIMIT_S = 1.0
REJOIN_LIMIT_S = 90.0
RETURN_LIMIT_S = 10.0
"""How long beyond the detection limit a node that came back looks for the others' coordinator."""
GONE_S = 6 * SIGN_S
"""A coordinator that cannot be reached and shows no sign of life for so long is gone."""
REACH_LIMIT_S = 60.0
"""How long a node tries to reach a coordinator that shows signs of life."""


def _direct(task: NodeTask, host: str, port: int, own_addr: str = "") -> NodeTask:
    """The task with the coordinator at this address; ``own_addr`` is this node's own on the route
    there, if known."""
    node, rendezvous = task.node, task.node.rendezvous
    assert isinstance(rendezvous, Elastic)
    there = replace(rendezvous, endpoint_host=host, endpoint_port=port)
    return replace(
        task, node=replace(node, rendezvous=there, local_addr=own_addr or node.local_addr)
    )


class Candidates:
    """The coordinators at the addresses of the plan, tried in an order that all nodes share."""

    def __init__(self, task: NodeTask, clock: Clock, token: str = "") -> None:
        self._task, self._clock, self._token = task, clock, token
        self._number = 0
        self.rules = parse_rules(task.node)
        """The rules for the coordinator that was planned last."""
        self.served: CoordinatorProcess | None = None
        """That coordinator, if it runs on this node."""

    def plan_round(self, *, elsewhere: bool = False) -> NodeTask:
        """The task with the next coordinator, or with the one that the others use already. Blocks.

        Starts the coordinator if it is this node's turn. ``elsewhere``: the others may use one that
        this node does not know yet. Raises ``OSError``.
        """
        number, stores = self._find(patient=elsewhere), self._task.settings.stores
        self._number, self.served = number + 1, None
        first = self._task.node.rendezvous
        assert isinstance(first, Elastic)
        # A new coordinator knows nothing of the run, so the id can stay, which newcomers know.
        host, port, is_host = first.endpoint_host, first.endpoint_port, first.is_host
        if number > 0:
            self._shorten_connect()
        if number > 0 and stores:
            store = stores[number % len(stores)]
            host, port = store.host, store.port
            is_host = store.node_index == self.rules.node_index
        if is_host:
            # Something may serve there already.
            with contextlib.suppress(UnservedError):
                # Nodes that all run here need no other interface.
                port = self._serve(port, host=LOOPBACK if host == LOOPBACK else "").port
        return _direct(self._task, host, port)

    def _shorten_connect(self) -> None:
        limit_s = min(CONNECT_LIMIT_S, self.rules.connect_timeout_s)
        self.rules = replace(self.rules, connect_timeout_s=limit_s)

    def _serve(self, port: int, **how: Any) -> CoordinatorProcess:
        run_id = self._task.node.rendezvous.id
        self.served = serve_forked(port, self.rules, run_id, self._token, **how)
        return self.served

    def _find(self, *, patient: bool) -> int:
        """The number of the coordinator that serves already, else of the next one.

        A node that came back must not start a second group.
        """
        following, stores = self._number, self._task.settings.stores
        run_id = self._task.node.rendezvous.id
        if len(stores) < 2:
            return following
        limit_s = self.rules.detection_limit_s + RETURN_LIMIT_S if patient else 0.0
        end = self._clock.monotonic() + limit_s
        # Not the one that was just lost: it may be frozen, and would use up the time.
        last = following + len(stores) - (following > 0 and not patient)
        while True:
            for number in range(following, last):
                store = stores[number % len(stores)]
                with contextlib.suppress(OSError, WireError):
                    ask(store.host, store.port, run_id, ANSWER_LIMIT_S, self._token)
                    return number % len(stores)
            if self._clock.monotonic() >= end:
                return following
            self._clock.sleep(LOOK_S)


# -- nodes that meet in a folder -------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What a node writes about the coordinator that it serves."""

    addresses: tuple[str, ...]
    """All addresses of the node's machine, the one that it prefers first and the loopback last."""
    port: int
    host: str
    node_index: int
    machine: str
    run_id: str
    origin: str
    """The coordinator's own id. It tells it from whatever else may listen at the address."""


class Meeting(Candidates):
    """The coordinators that are announced in a folder. Whoever creates the next
    ``coordinator-NUMBER.json`` first serves.

    So whichever nodes are there form a group, and a node that comes back finds it. No name is used
    twice, because clients of network file systems remember old files for long.
    """

    _joined = ("", "")
    """The origin of the coordinator that this node has reached before, and its address."""

    def __init__(self, task: NodeTask, clock: Clock, token: str = "") -> None:
        super().__init__(task, clock, token)
        awaits, rendezvous = task.settings.awaits_nodes, task.node.rendezvous
        assert isinstance(rendezvous, Elastic)
        is_given = "join_timeout_s" in dict(rendezvous.conf)
        join_s = NEVER_S if awaits and not is_given else self.rules.join_timeout_s
        # After that the group's other nodes end, and their scheduler can start all nodes anew.
        rejoin_s = join_s if awaits or is_given else REJOIN_LIMIT_S
        self.rules = replace(self.rules, join_timeout_s=join_s, rejoin_timeout_s=rejoin_s)
        self._shorten_connect()

    def plan_round(self, *, elsewhere: bool = False) -> NodeTask:
        """``elsewhere`` changes nothing: the folder names the others' coordinator.

        Raises ``ConnectionError`` if a coordinator is alive but this node cannot reach it.
        """
        folder, self.served = Path(self._task.settings.meet_dir), None
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            stems = (path.stem.partition("-")[2] for path in folder.glob("coordinator-*.json"))
            newest = max((int(stem) for stem in stems if stem.isdigit()), default=-1)
            task = self._reach(folder / f"coordinator-{newest}.json") if newest >= 0 else None
            if task := task or self._claim(folder / f"coordinator-{newest + 1}.json"):
                return task

    def _claim(self, path: Path) -> NodeTask | None:
        """Starts a coordinator here and announces it; None if another node was first."""
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return None
        served, node = self._serve(0, sign=path), self._task.node
        own_addresses = dict.fromkeys((node.local_addr, *addresses.own_addresses()))
        own_addresses.pop(LOOPBACK, None)
        announcement = Announcement(
            addresses=(*own_addresses, LOOPBACK),
            port=served.port,
            host=socket.gethostname(),
            node_index=node.node_index,
            machine=addresses.name_machine(),
            run_id=node.rendezvous.id,
            origin=served.origin,
        )
        path.write_text(json.dumps(asdict(announcement)))
        self._joined = (announcement.origin, LOOPBACK)
        return _direct(self._task, LOOPBACK, served.port)

    def _reach(self, path: Path) -> NodeTask | None:
        """The task with the coordinator that the file announces; None if that one is gone."""
        began = signed_at = self._clock.monotonic()
        sign = 0
        while True:
            now = self._clock.monotonic()
            announcement, newest_sign = _read_announcement(path)
            if newest_sign != sign:
                sign, signed_at = newest_sign, now
            answers = reach(announcement, self._token) if announcement else {}
            for address, error in answers.items():
                place = (announcement.origin if announcement else "", address)
                if announcement and error is None:
                    self._joined = place
                    is_here = addresses.is_loopback(address)
                    own_addr = "" if is_here else addresses.address_towards(address)
                    return _direct(self._task, address, announcement.port, own_addr)
                # No firewall stands between a machine and itself.
                is_sure = address == LOOPBACK or place == self._joined
                if is_sure and isinstance(error, ConnectionRefusedError):
                    return None
            if now - signed_at >= GONE_S:
                return None
            if now - began >= REACH_LIMIT_S:
                raise ConnectionError(_describe(path, announcement, answers))
            self._clock.sleep(LOOK_S)


def _describe(path: Path, announcement: Announcement | None, answers: Mapping[str, object]) -> str:
    if announcement is None:
        return f"{path} does not say where the run's coordinator is"
    errors = ", ".join(f"{address} ({error})" for address, error in answers.items())
    return (
        f"the run's coordinator of node {announcement.node_index} on {announcement.host} is alive, "
        f"but port {announcement.port} of {errors or announcement.addresses} cannot be reached "
        "from here: check the network and firewalls between the nodes"
    )


def _read_announcement(path: Path) -> tuple[Announcement | None, int]:
    """The announcement, None while it is being written, and the file's time of change in
    nanoseconds, which grows as long as the coordinator lives."""
    signed_ns = 0
    # At an open, network file systems ask the server.
    with contextlib.suppress(OSError, ValueError), path.open() as file:
        signed_ns = os.fstat(file.fileno()).st_mtime_ns
        return parse_record(Announcement, parse_object(file.read())), signed_ns
    return None, signed_ns


def reach(announcement: Announcement, token: str = "") -> dict[str, object]:
    """Why the coordinator cannot be reached at each of its addresses; None for one that answers.

    Tries all at once, because some may not answer. Blocks for about ``ANSWER_LIMIT_S``.
    """

    def try_address(address: str) -> object:
        try:
            origin = ask(address, announcement.port, announcement.run_id, ANSWER_LIMIT_S, token)
        except (OSError, WireError) as error:
            return error
        return None if origin == announcement.origin else WireError("another coordinator answers")

    own_addresses = addresses.own_addresses()
    is_same = addresses.name_machine() == announcement.machine != ""
    # An address that both machines have, as Docker's, leads back to this one.
    usable = [
        a
        for a in announcement.addresses
        if is_same or not (addresses.is_loopback(a) or a in own_addresses)
    ]
    with ThreadPoolExecutor() as pool:
        return dict(zip(usable, pool.map(try_address, usable), strict=True))
