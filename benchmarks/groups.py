"""One or two nodes on loopback, under the node agent or under torchrun, that run collectives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.commands import ROOT, find_torchrun, free_port
from benchmarks.trees import Trees
from launcher.contract.node_plan import AgentSettings, Elastic, NodePlan, NodeTask, StoreEndpoint
from launcher.targets.agent_archive import read_agent_sources, render_agent_archive

SCRIPT = ROOT / "benchmarks" / "peers" / "collectives.py"
HOST = "127.0.0.1"
RESTARTS = 100
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    # Without it, torchrun's quick restarts may hang: not what is compared here.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "PYTHONPATH": str(ROOT),
}
BUSY, SLEEPS = 0.02, 3600.0
"""Seconds between two collectives of a worker."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What both sides run; ``conf`` is the rendezvous' own, of the side's backend.

    ``script`` is called with the file to tell in, ``pause_s`` and ``words``.
    """

    side: Literal["agent", "torchrun"]
    nproc: int = 1
    max_nodes: int = 1
    pause_s: float = BUSY
    conf: Mapping[str, str] = field(default_factory=dict)
    script: Path = SCRIPT
    words: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ()
    """Another program with torchrun's options, and options of its own."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One line of the script: a collective ended on one worker, in this step if it counts them."""

    at: float
    world_size: int
    rank: int
    pid: int
    step: int = 0


def parse_collectives(text: str) -> tuple[Collective, ...]:
    """Whole lines only: the last one may be half written."""
    words = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return tuple(
        Collective(
            at=float(at), world_size=int(size), rank=int(rank), pid=int(pid), step=int(*step)
        )
        for at, size, rank, pid, *step in words
    )


def find_first(
    told: tuple[Collective, ...], world_size: int, old_pids: frozenset[int] = frozenset()
) -> Collective | None:
    """The first collective in a world of this size by a worker that is none of the old ones."""
    fits = (one for one in told if one.world_size == world_size and one.pid not in old_pids)
    return min(fits, key=lambda one: one.at, default=None)


class Group:
    """The nodes of one sample, and what their workers told."""

    def __init__(self, setting: Setting, trees: Trees) -> None:
        self.setting, self.trees = setting, trees
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.file = trees.folder / "collectives"
        self._ports = [free_port() for _ in range(setting.max_nodes)]
        if setting.side == "agent":
            self._archive = trees.folder / "agent.pyz"
            self._archive.write_bytes(render_agent_archive(read_agent_sources()))

    def start_node(self) -> subprocess.Popen[bytes]:
        """The next node."""
        self.nodes.append(self.trees.start(self.describe_node(len(self.nodes))))
        return self.nodes[-1]

    def describe_node(self, index: int) -> tuple[str, ...]:
        """The command of one node."""
        return self._agent(index) if self.setting.side == "agent" else self._torchrun(index)

    def start(self, nodes: int) -> None:
        """So many nodes, until all their workers have been in a collective together."""
        for _ in range(nodes):
            self.start_node()
        size = nodes * self.setting.nproc

        def all_in() -> bool:
            return len({one.rank for one in self.told() if one.world_size == size}) == size

        self.trees.wait_for(all_in, f"a world of {size}")

    def told(self) -> tuple[Collective, ...]:
        return parse_collectives(self.file.read_text()) if self.file.exists() else ()

    def pids(self) -> frozenset[int]:
        return frozenset(one.pid for one in self.told())

    def wait_for_first(self, world_size: int, old_pids: frozenset[int] = frozenset()) -> float:
        """The instant of the first collective by new workers in a world of this size."""
        found: list[Collective] = []

        def look() -> bool:
            if first := find_first(self.told(), world_size, old_pids):
                found.append(first)
            return bool(found)

        self.trees.wait_for(look, f"a collective in a world of {world_size}")
        return found[0].at

    def _command(self) -> tuple[str, ...]:
        setting = self.setting
        return (str(setting.script), str(self.file), str(setting.pause_s), *setting.words)

    def _agent(self, index: int) -> tuple[str, ...]:
        setting, folder = self.setting, self.trees.folder
        stores = [
            StoreEndpoint(host=HOST, port=port, node_index=node)
            for node, port in enumerate(self._ports)
        ]
        conf = {"fence_dir": str(folder), **setting.conf}
        node = NodePlan(
            node_index=index,
            incarnation=0,
            name=f"node-{index}",
            local_addr=HOST,
            min_nodes=1,
            max_nodes=setting.max_nodes,
            nproc_per_node=setting.nproc,
            max_restarts=RESTARTS,
            rendezvous=Elastic(
                backend="roster",
                endpoint_host=HOST,
                endpoint_port=self._ports[0],
                id="benchmark",
                is_host=index == 0,
                conf=tuple(conf.items()),
            ),
            command=self._command(),
            workdir=str(folder),
            env=(("RUN_DIR", str(folder / "run")),),
            secrets=(),
            mounts=(),
            device_ids=(),
            log_dir=str(folder / f"run/nodes/{index}/0"),
        )
        # As the launcher has it, which follows the workers' files; torchrun copies nothing either.
        settings = AgentSettings(start="fork", stores=tuple(stores), tee=False)
        plan = folder / f"node-plan-{index}.json"
        plan.write_text(NodeTask(node=node, settings=settings).to_json())
        return (sys.executable, str(self._archive), str(plan))

    def _torchrun(self, index: int) -> tuple[str, ...]:
        setting = self.setting
        argv = [*(setting.torchrun or find_torchrun()), f"--nproc-per-node={setting.nproc}"]
        argv += [f"--max-restarts={RESTARTS}"]
        if setting.max_nodes == 1:
            return (*argv, "--standalone", *self._command())
        conf = {"is_host": str(int(index == 0)), **setting.conf}
        return (
            *argv,
            f"--nnodes=1:{setting.max_nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={HOST}:{self._ports[0]}",
            "--rdzv-id=benchmark",
            f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}",
            f"--local-addr={HOST}",
            *self._command(),
        )


@contextmanager
def group_of(
    setting: Setting, kind: Callable[[Setting, Trees], Group] | None = None
) -> Iterator[Group]:
    """A group in a folder of its own; both are gone afterwards."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        # A killed node leaves its temporary files.
        Trees(Path(folder), {**ENVIRONMENT, "TMPDIR": folder}) as trees,
    ):
        yield (kind or Group)(setting, trees)
