"""torch's own elastic agent on the roster, one process per node, with shell scripts as workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.launcher.agent.roster.node_process import CONTEXT

HEADER = 'echo "$$ $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >> "$TOLD"; '
SLEEP = HEADER + "exec sleep 600"


def launch(
    told: str, port: int, nnodes: tuple[int, int], script: str, conf: dict[str, Any]
) -> None:
    """One node: ``elastic_launch`` without a single restart to spend, and how it ended."""
    os.environ["TOLD"] = told
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from launcher.agent.roster.backend import create_handler
    from launcher.agent.roster.handler import RosterHandler

    made: list[RosterHandler] = []

    def create(params: RendezvousParameters) -> RosterHandler:
        made.append(create_handler(params))
        return made[-1]

    registry.register("roster", create)
    restarts = conf.pop("agent_restarts", 0)
    config = LaunchConfig(
        min_nodes=nnodes[0],
        max_nodes=nnodes[1],
        nproc_per_node=1,
        run_id="run",
        rdzv_backend="roster",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs=conf,
        max_restarts=restarts,
        monitor_interval=0.1,
        local_addr="127.0.0.1",
        shutdown_timeout=2,
    )
    try:
        elastic_launch(config, "/bin/sh")(script)
        ended = "returned"
    except SignalException as error:
        made[0].leave()
        ended = type(error).__name__
    except BaseException as error:
        ended = type(error).__name__
    outcome = {
        "ended": ended,
        "closed": made[0].head.closed,
        "counts": dict(made[0].head.counts),
    }
    Path(told + ".outcome").write_text(json.dumps(outcome))
    os._exit(0)


@dataclass
class Agent:
    """A node's agent, and the starts of its workers: (pid, rank, world size, restart count)."""

    process: ForkServerProcess
    told: Path

    def starts(self) -> list[tuple[int, ...]]:
        if not self.told.exists():
            return []
        lines = self.told.read_text().splitlines()
        return [tuple(int(word) for word in line.split()) for line in lines]

    def runs_as(self, rank: int, size: int, restarts: int = 0) -> bool:
        return bool(self.starts()) and self.starts()[-1][1:] == (rank, size, restarts)

    def outcome(self) -> dict[str, Any] | None:
        path = Path(f"{self.told}.outcome")
        return json.loads(path.read_text()) if path.exists() and path.stat().st_size else None

    def kill(self) -> float:
        """The whole node goes, workers and all, as in a power cut."""
        assert self.process.pid is not None
        at = time.monotonic()
        os.kill(self.process.pid, signal.SIGKILL)
        self.kill_workers()
        return at

    def kill_workers(self) -> None:
        for pid, *_ in self.starts()[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Agents:
    """Starts agents around one store and ends them all."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.all: list[Agent] = []

    def start(self, index: int, nnodes: tuple[int, int], script: str, **conf: Any) -> Agent:
        told = self.folder / f"agent-{len(self.all)}"
        conf = {"detection_limit_s": 1.0, "last_call_s": 0.5, "fence_dir": str(self.folder)} | conf
        conf["node_index"] = index
        path = told.with_suffix(".sh")  # a file, because torch replaces $$ in arguments
        path.write_text(script)
        process = CONTEXT.Process(
            target=launch, args=(str(told), self.port, nnodes, str(path), conf)
        )
        process.start()
        self.all.append(Agent(process, told))
        return self.all[-1]

    def end(self) -> None:
        for agent in self.all:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
        for agent in self.all:
            agent.process.join(5)
            agent.kill_workers()
