"""Many nodes that meet, each a forked process with a rendezvous handler: prints what it took.

``python -m benchmarks.peers.many_nodes SIDE NODES LIMIT_S``, with SIDE ``roster`` or ``c10d``. The
line of JSON has seconds, and null for what did not come within the limit:

- ``sealed_s``: from the last call of ``next_rendezvous`` until it has returned on all nodes.
- ``leader_s``, ``store_s``: processor time for each second while nothing happens.
- ``pace``: the leader's pulses for each second of that time; below 4 the machine is too small.
- ``told_s``: one node is killed; from the first node that is told of it to the last one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch.distributed.elastic.rendezvous.registry as registry
from launcher.agent.roster.backend import create_handler
from launcher.agent.roster.handler import RosterHandler
from launcher.agent.roster.membership import index_of
from launcher.agent.roster.store import Endpoint, StoreClient, StoreProcess, serve_forked
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from benchmarks.commands import free_port
from launcher.agent import processes

HOST, RUN_ID = "127.0.0.1", "many"
MONITOR_S = 0.1
"""As the agent asks its handler whether nodes wait."""
CALM_S, STEADY_S = 3.0, 10.0
KILL = 1
"""A node that serves no store, and leads only where it came first."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """One line of a node: what happened there, and when."""

    word: str
    at: float
    leader: str


class Gate:
    """Processes wait at it until it is opened for all of them."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def open(self) -> None:
        os.close(self._writer)

    def wait(self) -> None:
        os.read(self._reader, 1)

    def leave_to_parent(self) -> None:
        """For a child, whose copy would keep the gate closed."""
        os.close(self._writer)


@dataclass
class Crowd:
    """The processes of all nodes, and what they tell."""

    side: str
    nodes: int
    port: int
    fence_dir: str
    pids: dict[int, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gates = {name: Gate() for name in ("connect", "meet", "watch")}
        self._reader, self._writer = os.pipe()
        self._rest = b""

    def fork(self, index: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.pids[index] = pid
            return
        try:
            processes.die_with_parent(parent)
            for gate in self.gates.values():
                gate.leave_to_parent()
            self._live(index)
        except BaseException as error:
            told = f"{error!r} {error.__cause__!r}"[:300]
            print(f"node {index}: {told}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def _live(self, index: int) -> None:
        if index > 0:
            self.gates["connect"].wait()
        handler = self._make_handler(index)
        self._tell("made")
        self.gates["meet"].wait()
        self._tell("called")
        handler.next_rendezvous()
        self._tell("met", handler.head.leader if isinstance(handler, RosterHandler) else "-")
        self.gates["watch"].wait()
        while not handler.num_nodes_waiting():
            time.sleep(MONITOR_S)
        self._tell("told")
        signal.pause()

    def _make_handler(self, index: int) -> RendezvousHandler:
        roster = self.side == "roster"
        own: dict[str, Any] = {"node_index": index, "fence_dir": self.fence_dir}
        params = RendezvousParameters(
            backend=self.side,
            endpoint=f"{HOST}:{self.port}",
            run_id=RUN_ID,
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            local_addr=HOST,
            **(own if roster else {"is_host": index == 0, "store_type": "tcp"}),
        )
        return create_handler(params) if roster else registry.get_rendezvous_handler(params)

    def _tell(self, word: str, leader: str = "-") -> None:
        os.write(self._writer, f"{word} {time.monotonic()} {leader}\n".encode())

    def wait_for(self, word: str, count: int, limit_s: float) -> list[Told]:
        """What was told with this word; fewer than ``count`` where the time is over."""
        end = time.monotonic() + limit_s
        while True:
            said = [one for one in self.told if one.word == word]
            left_s = end - time.monotonic()
            if len(said) >= count or left_s <= 0:
                return said
            if select.select([self._reader], [], [], left_s)[0]:
                self._read()

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
        for line in lines:
            word, at, leader = line.decode().split()
            self.told.append(Told(word=word, at=float(at), leader=leader))

    def kill(self, *indexes: int) -> None:
        for index in indexes:
            pid = self.pids.pop(index)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def measure(crowd: Crowd, store: StoreProcess | None, limit_s: float) -> Iterator[tuple[str, Any]]:
    """The figures, as far as they came within the limit."""
    for index in range(crowd.nodes):
        crowd.fork(index)
    crowd.wait_for("made", 1, limit_s)  # the first one serves the peer's store
    crowd.gates["connect"].open()
    if len(crowd.wait_for("made", crowd.nodes, limit_s)) < crowd.nodes:
        return
    crowd.gates["meet"].open()
    met = crowd.wait_for("met", crowd.nodes, limit_s)
    called = crowd.wait_for("called", crowd.nodes, limit_s)
    if len(met) < crowd.nodes or len(called) < crowd.nodes:
        print(f"{len(called)} have come, {len(met)} have ranks", file=sys.stderr)
        return
    yield "sealed_s", max(one.at for one in met) - max(one.at for one in called)
    if store is None:
        return
    seat = met[-1].leader
    leader = index_of(seat)
    yield from measure_calm(crowd.pids[leader], store, seat)
    crowd.gates["watch"].open()
    time.sleep(CALM_S)
    crowd.kill(KILL if leader != KILL else KILL + 1)
    told = [one.at for one in crowd.wait_for("told", crowd.nodes - 1, limit_s)]
    if len(told) == crowd.nodes - 1:
        yield "told_s", max(told) - min(told)


def measure_calm(pid: int, store: StoreProcess, seat: str) -> Iterator[tuple[str, float]]:
    """Processor time of the leader, which has this seat, and of the store; nothing happens."""
    client = StoreClient(Endpoint(host=HOST, port=store.port), RUN_ID, 60.0)
    time.sleep(CALM_S)
    watched = {"leader_s": psutil.Process(pid), "store_s": psutil.Process(store.pid)}

    def look() -> tuple[float, int, dict[str, float]]:
        used = {name: sum(one.cpu_times()[:2]) for name, one in watched.items()}
        pulses = int(client.beats_of([seat])[seat].split()[0])
        return time.monotonic(), pulses, used

    began_at, first, before = look()
    time.sleep(STEADY_S)
    ended_at, last, after = look()
    passed_s = ended_at - began_at
    yield "pace", (last - first) / passed_s
    for name in watched:
        yield name, (after[name] - before[name]) / passed_s


def main(side: str, nodes: int, limit_s: float) -> None:
    """Prints the figures; ends all processes."""
    logging.disable(logging.WARNING)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    store = serve_forked(0) if side == "roster" else None
    # A port of the store's own for the other side: its first node listens there.
    port = store.port if store else free_port()
    gc.collect()
    gc.freeze()
    names = ("sealed_s", "leader_s", "store_s", "pace", "told_s")
    with tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(side, nodes, port, folder)
        try:
            found = dict(measure(crowd, store, limit_s))
        finally:
            crowd.kill(*list(crowd.pids))
            if store:
                store.stop()
    print(json.dumps(dict.fromkeys(names) | found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
