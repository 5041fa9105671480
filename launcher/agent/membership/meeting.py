"""Nodes whose addresses nobody knows before they run meet through a folder that all of them see.

The run's coordinators are numbered. A node that needs one looks at the newest; where that is gone,
it creates ``coordinator-NUMBER.json`` for the next one, which only one node can do, and serves it
at any free port. So whichever nodes are there form a group, and one that comes back finds it.
The names are never used again, because clients of network file systems remember old files for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.agent import addresses
from launcher.agent.membership.coordinator import SIGN_S
from launcher.agent.membership.process import (
    CoordinatorProcess,
    Endpoint,
    ask,
    rules_of,
    serve_forked,
)
from launcher.agent.streams import say
from launcher.contract.agent_settings import NodeTask
from launcher.contract.clock import Clock
from launcher.contract.node_plan import Elastic, Env
from launcher.contract.records import parse_record, read_object

CONNECT_LIMIT_S = 15.0
"""How long a later one may take to answer: its node runs already, and lost the last one too."""
GONE_S = 6 * SIGN_S
"""A coordinator that cannot be reached and shows no sign of life for so long is gone."""
REACH_LIMIT_S = 60.0
"""How long a node tries to reach a store that shows signs of life."""
NEVER_S = 365 * 24 * 3600
ANSWER_LIMIT_S = 1.0
LOOK_S = 0.25


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
    """By which the coordinator is known from whatever else listens there."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where it answered, and this node's address on the route there; None for the loopback."""

    endpoint: Endpoint
    local_addr: str | None


class UnreachableError(Exception):
    """A coordinator lives, but this node cannot reach it."""


def carry_conf(conf: Env, carried: Mapping[str, str]) -> Env:
    """The settings for a coordinator that follows another, or answers already."""
    given = {**dict(conf), **carried}
    limit_s = min(CONNECT_LIMIT_S, float(given.get("connect_timeout_s", CONNECT_LIMIT_S)))
    return tuple((given | {"connect_timeout_s": f"{limit_s:g}"}).items())


class Meeting:
    """Finds or serves the run's coordinator for one node, again after each loss."""

    has_answered = True

    def __init__(self, task: NodeTask, clock: Clock, token: str = "") -> None:
        self._task, self._clock, self._token = task, clock, token
        self._folder = Path(task.settings.meet_dir)
        self._conf: dict[str, str] = {}
        self._joined = ("", "")
        """The origin of the coordinator that this node has reached before, and its address."""

    def plan_round(self, carried: Mapping[str, str], *, elsewhere: bool = False) -> NodeTask:
        """The task with a coordinator that answers now, of another node or served by this one.

        Blocks; call it from the main thread, with which it dies. Raises UnreachableError,
        OSError where the folder cannot be used, and UnservedError where none can be
        started. ``elsewhere`` changes nothing: the folder names that of the others.
        """
        node, rendezvous = self._task.node, self._task.node.rendezvous
        assert isinstance(rendezvous, Elastic)
        conf = dict(carry_conf(rendezvous.conf, carried))
        if self._task.settings.awaits_nodes:
            conf.setdefault("join_timeout_s", str(NEVER_S))
        # After that the group's other nodes end, and their scheduler can start all nodes anew.
        conf["rejoin_timeout_s"] = conf.get("join_timeout_s", "90")
        self._conf = conf
        found = self._find_or_serve()
        if isinstance(found, CoordinatorProcess):
            conf["coordinator_pid"] = str(found.pid)
            endpoint = Endpoint(host=addresses.LOOPBACK, port=found.port)
        else:
            endpoint = found.endpoint
            node = replace(node, local_addr=found.local_addr or node.local_addr)
        rendezvous = replace(
            rendezvous,
            endpoint_host=endpoint.host,
            endpoint_port=endpoint.port,
            is_host=isinstance(found, CoordinatorProcess),
            conf=tuple(conf.items()),
        )
        return replace(self._task, node=replace(node, rendezvous=rendezvous))

    def _find_or_serve(self) -> Reached | CoordinatorProcess:
        self._folder.mkdir(parents=True, exist_ok=True)
        number = self._newest()
        while True:
            if number is not None and (reached := self._wait_for(number)):
                return reached
            number = 0 if number is None else number + 1
            path = self._path(number)
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                continue
            if (store := self._serve(path, handle)) is not None:
                return store
            number = self._newest()

    def _newest(self) -> int | None:
        stems = (path.stem.partition("-")[2] for path in self._folder.glob("coordinator-*.json"))
        return max((int(stem) for stem in stems if stem.isdigit()), default=None)

    def _path(self, number: int) -> Path:
        return self._folder / f"coordinator-{number}.json"

    def _serve(self, path: Path, handle: int) -> CoordinatorProcess | None:
        """None where this took so long that others have taken it for gone."""
        own, rendezvous = self._task.node.local_addr, self._task.node.rendezvous
        with os.fdopen(handle, "w") as file:
            rules = rules_of(self._task.node, self._conf)
            store = serve_forked(0, rules, rendezvous.id, self._token, sign=path)
            if self._newest() != int(path.stem.partition("-")[2]):
                store.stop()
                return None
            others = [text for text in addresses.own_addresses() if text != own]
            first = [] if own == addresses.LOOPBACK else [own]
            announcement = Announcement(
                addresses=(*first, *others, addresses.LOOPBACK),
                port=store.port,
                host=socket.gethostname(),
                node_index=self._task.node.node_index,
                machine=addresses.name_machine(),
                run_id=rendezvous.id,
                origin=store.origin,
            )
            try:
                json.dump(asdict(announcement), file)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                store.stop()
                path.unlink(missing_ok=True)
                raise
        self._joined = (store.origin, addresses.LOOPBACK)
        return store

    # -- the coordinator of another node ---------------------------------------------------------

    def _wait_for(self, number: int) -> Reached | None:
        """Where that one answers; None where it is gone. Raises UnreachableError."""
        path, began = self._path(number), self._clock.monotonic()
        sign, signed_at, told = _read_sign(path), began, False
        while True:
            said = _read(path)
            reached, refusing, others = reach(said, self._token) if said else (None, (), ())
            if said and reached:
                self._joined = (said.origin, reached.endpoint.host)
                return reached
            now = self._clock.monotonic()
            if (new := _read_sign(path)) != sign:
                sign, signed_at = new, now
            was_here = said is not None and said.origin == self._joined[0]
            refuses = was_here and self._joined[1] in refusing
            # No firewall stands between a machine and itself.
            if refuses or addresses.LOOPBACK in refusing or now - signed_at >= GONE_S:
                return None
            if now - began >= REACH_LIMIT_S:
                raise UnreachableError(_describe(path, said, refusing, others))
            if not told and now - began >= GONE_S:
                told = True
                say(_describe(path, said, refusing, others))
            self._clock.sleep(LOOK_S)


def _describe(
    path: Path, said: Announcement | None, refusing: tuple[str, ...], others: tuple[str, ...]
) -> str:
    if said is None:
        return f"a node coordinates the run, but cannot write its address to {path}"
    how, where = "does not answer", ", ".join(said.addresses)
    if refusing or others:
        how = "refuses connections" if refusing else "is of another run or has another token, seen"
    return (
        f"the run's coordinator of node {said.node_index} on {said.host} is alive, but port "
        f"{said.port} {how} from here at {where}: check the network and firewalls between the nodes"
    )


def _read(path: Path) -> Announcement | None:
    """The announcement; None while it is being written."""
    with contextlib.suppress(ValueError):
        return parse_record(Announcement, read_object(path))
    return None


def _read_sign(path: Path) -> int:
    """A time that changes while it lives. At an open network file systems ask the server."""
    try:
        with path.open() as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0


def reach(
    said: Announcement, token: str = ""
) -> tuple[Reached | None, tuple[str, ...], tuple[str, ...]]:
    """Where it answers now, and else which of its addresses refuse, and where others answer."""
    own, is_same = addresses.own_addresses(), addresses.name_machine() == said.machine != ""
    # An address that both machines have, as Docker's, leads back to this one.
    usable = [a for a in said.addresses if is_same or not (addresses.is_loopback(a) or a in own)]
    taken, refusing = _connect_to_all(usable, said.port)
    for address in sorted(taken, key=usable.index):
        endpoint = Endpoint(host=address, port=said.port)
        if ask(endpoint, said.run_id, ANSWER_LIMIT_S, token) == said.origin:
            local = None if addresses.is_loopback(address) else taken[address]
            return Reached(endpoint=endpoint, local_addr=local), (), ()
    return None, refusing, tuple(taken)


def _connect_to_all(hosts: Sequence[str], port: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """The hosts that take a connection, with this machine's own address there; those that refuse.

    Dials all at once, because the wrong ones may be silent: takes a second at most.
    """

    def dial(host: str) -> str | None:
        """This machine's own address there; empty where the host refuses, None if it is silent."""
        try:
            with socket.create_connection((host, port), timeout=ANSWER_LIMIT_S) as ours:
                return str(ours.getsockname()[0])
        except ConnectionRefusedError:
            return ""
        except OSError:
            return None

    with ThreadPoolExecutor() as pool:
        answers = dict(zip(hosts, pool.map(dial, hosts), strict=True))
    taken = {host: own for host, own in answers.items() if own}
    return taken, tuple(host for host, own in answers.items() if own == "")
