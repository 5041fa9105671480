"""Many nodes that meet, each a forked process with a rendezvous handler: prints what it took.

``python -m benchmarks.peers.many_nodes SIDE NODES LIMIT_S``, with SIDE ``roster`` or ``c10d``. The
line of JSON has seconds, and null for what did not come within the limit:

- ``sealed_s``: from the last node that asks for a rendezvous until it has returned on all nodes.
- ``coordinator_s``: processor time for each second while nothing happens; ``coordinator_mib`` its
  memory, its part of what it shares included.
- ``told_s``: one node is killed; from the first node that is told of it to the last one.
- ``known_s``: from the kill to the last node that is told.
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
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch.distributed.elastic.rendezvous.registry as registry
from torch.distributed.elastic.rendezvous import RendezvousParameters

from benchmarks.commands import free_port
from launcher.agent import processes
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Rules
from launcher.agent.membership.process import CoordinatorProcess, serve_forked

HOST, RUN_ID = "127.0.0.1", "many"
CALM_S, STEADY_S, READ_S = 3.0, 10.0, 0.02
KILL = 1
NAMES = ("sealed_s", "coordinator_s", "coordinator_mib", "told_s", "known_s")


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
    rules: Rules
    """Of each node, but for its index."""
    pids: dict[int, int] = field(default_factory=dict)
    told: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When nodes said each word, by their own clocks."""

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
        client = self._open_client(index) if self.side == "roster" else None
        meet = client.meet if client else self._make_peer(index).next_rendezvous
        self._tell("made")
        self.gates["meet"].wait()
        self._tell("called")
        meet()
        self._tell("met")
        self.gates["watch"].wait()
        # Agents look twenty times a second; here it is no part of the figure.
        while client and not client.settle(client.must_meet, 5.0):
            pass
        self._tell("told")
        signal.pause()

    def _open_client(self, index: int) -> Client:
        client = Client(HOST, self.port, RUN_ID, replace(self.rules, node_index=index))
        client.begin()
        return client

    def _make_peer(self, index: int) -> Any:
        params = RendezvousParameters(
            backend=self.side,
            endpoint=f"{HOST}:{self.port}",
            run_id=RUN_ID,
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            local_addr=HOST,
            is_host=index == 0,
            store_type="tcp",
        )
        return registry.get_rendezvous_handler(params)

    def _tell(self, word: str) -> None:
        os.write(self._writer, f"{word} {time.monotonic()}\n".encode())

    def wait_for(self, word: str, count: int, limit_s: float) -> list[float]:
        """When this word was told; fewer than ``count`` where the time is over."""
        end = time.monotonic() + limit_s
        while len(self.told[word]) < count and (left_s := end - time.monotonic()) > 0:
            if select.select([self._reader], [], [], left_s)[0]:
                self._read()
            # Else this process would run for each line, on processors that the nodes need.
            time.sleep(READ_S)
        return self.told[word]

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
        for line in lines:
            word, at = line.decode().split()
            self.told[word].append(float(at))

    def kill(self, *indexes: int) -> None:
        for index in indexes:
            pid = self.pids.pop(index)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def measure(
    crowd: Crowd, served: CoordinatorProcess | None, limit_s: float
) -> Iterator[tuple[str, float]]:
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
    yield "sealed_s", max(met) - max(called)
    if served is None:
        return
    yield from measure_calm(psutil.Process(served.pid))
    crowd.gates["watch"].open()
    time.sleep(CALM_S)
    killed_at = time.monotonic()
    crowd.kill(KILL)
    told = crowd.wait_for("told", crowd.nodes - 1, limit_s)
    if len(told) == crowd.nodes - 1:
        yield "told_s", max(told) - min(told)
        yield "known_s", max(told) - killed_at


def measure_calm(coordinator: psutil.Process) -> Iterator[tuple[str, float]]:
    """What the coordinator needs while nothing happens."""
    time.sleep(CALM_S)
    began_at, before = time.monotonic(), sum(coordinator.cpu_times()[:2])
    time.sleep(STEADY_S)
    used_s = sum(coordinator.cpu_times()[:2]) - before
    yield "coordinator_s", used_s / (time.monotonic() - began_at)
    yield "coordinator_mib", coordinator.memory_full_info().pss / 2**20


def main(side: str, nodes: int, limit_s: float) -> None:
    """Prints the figures; ends all processes."""
    logging.disable(logging.WARNING)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        rules = Rules(min_nodes=nodes, max_nodes=nodes, fence_dir=folder)
        served = serve_forked(0, rules, RUN_ID) if side == "roster" else None
        gc.collect()
        gc.freeze()
        # A port of the store's own for the other side: its first node listens there.
        crowd = Crowd(side, nodes, served.port if served else free_port(), rules)
        try:
            found = dict(measure(crowd, served, limit_s))
        finally:
            crowd.kill(*list(crowd.pids))
            if served:
                served.stop()
    print(json.dumps(dict.fromkeys(NAMES) | found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
