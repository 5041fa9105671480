"""Nodes as real processes, each with torch's own elastic agent on one of the backends."""

import contextlib
import ctypes
import functools
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["launcher.agent.engine.rendezvous", "torch._dynamo"])
"""torch imports its compiler to format the first exception that it logs: here once for all."""
PR_SET_PDEATHSIG = 1
LIMIT_S = 90.0
"""How long a scenario may take to get anywhere, on a machine with nothing else to do."""
FORKED_S = 0.5
"""How long after a worker's first words its agent is past the fork."""
STUCK_S = 15.0
"""How long a cell that is known to hang is watched before it is said to."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one node is told to run."""

    folder: str
    orders: str
    worker: Callable[[], str]
    backend: str
    launch: dict[str, Any]
    exit_barrier_s: float


def run_node(task: Task) -> None:
    """The life of a node: ``elastic_launch``, as torchrun calls it, and how it ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folder = Path(task.folder)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    told = folder / "told"
    told.mkdir()
    os.environ |= {"TOLD": str(told), "ORDERS": task.orders, "OMP_NUM_THREADS": "1"}
    os.environ |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"TP_SOCKET_IFNAME": "lo", "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
    outcome = _launch(task)
    hidden = folder / ".outcome"
    hidden.write_text(outcome)
    hidden.rename(folder / "outcome")
    os._exit(0)


def _launch(task: Task) -> str:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher import api

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.INFO)
    rendezvous_handler_registry.register("roster", _open_roster)
    agent = functools.partial(api.LocalElasticAgent, exit_barrier_timeout=task.exit_barrier_s)
    api.LocalElasticAgent = agent  # torch's launcher has no option for it
    logs = DefaultLogsSpecs(log_dir=str(Path(task.folder, "logs")))
    config = api.LaunchConfig(
        logs_specs=logs, rdzv_backend=task.backend, start_method="fork", **task.launch
    )
    try:
        record(api.elastic_launch(config, task.worker))()
    except ChildFailedError as error:
        return f"exit code {error.get_first_failure()[1].exitcode}"
    except BaseException as error:
        traceback.print_exc()
        return type(error).__name__
    return "completes"


def _open_roster(params: Any) -> Any:
    """As the node agent does; node 0 serves the run, unless something serves it already."""
    from launcher.agent.engine.rendezvous import RosterHandler
    from launcher.agent.membership.client import Client
    from launcher.agent.membership.group import Rules
    from launcher.agent.membership.process import UnservedError, serve_forked

    # torch adds a timeout.
    conf = {name: value for name, value in params.config.items() if name != "timeout"}
    rules = Rules(min_nodes=params.min_nodes, max_nodes=params.max_nodes, **conf)
    host, port = params.endpoint.split(":")
    served = None
    if rules.node_index == 0:
        with contextlib.suppress(UnservedError):
            served = serve_forked(int(port), rules, params.run_id)
    at = host, int(port), params.run_id, rules
    client = Client(*at, served=served)
    client.begin()

    class Handler(RosterHandler):
        def num_nodes_waiting(self) -> int:
            if client.status.newcomers:
                # Nobody has to commit first.
                client.say("admit")
            return super().num_nodes_waiting()

    return Handler(lambda: client)


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return []


@dataclass
class Node:
    """One node's process, and what is known of it and of its workers."""

    name: str
    process: ForkServerProcess
    folder: Path
    gone: bool = False
    """Whether the test ended it, so that its ending says nothing."""

    def starts(self) -> list[dict[str, str]]:
        """The environments of the workers so far, in order of start."""
        files = [p for p in self.folder.glob("told/*") if not p.name.startswith(".")]
        files.sort(key=lambda path: path.stat().st_mtime_ns)
        return [dict(line.partition("=")[::2] for line in _lines(path)) for path in files]

    def ranks(self) -> list[int]:
        """The ranks of the last round's workers that have told so far."""
        starts = self.starts()
        last = [s for s in starts if s["MASTER_PORT"] == starts[-1]["MASTER_PORT"]]
        return sorted(int(start["RANK"]) for start in last)

    def runs_in(self, world: int, rounds: int = 1) -> bool:
        """Whether a worker of it has told that it is in a world of this size."""
        starts = self.starts()
        seen = {start["MASTER_PORT"] for start in starts}
        return len(seen) >= rounds and starts[-1]["WORLD_SIZE"] == str(world)

    def rendezvous(self) -> int:
        """How often its agent has asked for a place in the group."""
        return self.log().count("Rendezvous'ing worker group")

    def is_past_the_barrier(self) -> bool:
        """Whether its agent has waited for the other agents in vain."""
        return "Error waiting on exit barrier" in self.log()

    def ended(self) -> bool:
        return not self.process.is_alive()

    def ending(self) -> str:
        """One of: completes, exit code N of the first failure, an exception, a signal."""
        if not self.ended():
            return "still runs"
        if outcome := _lines(self.folder / "outcome"):
            return outcome[0]
        code = self.process.exitcode or 0
        return f"dies by {signal.Signals(-code).name}" if code < 0 else f"leaves with {code}"

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def terminate(self) -> None:
        """What a cluster sends before it takes a machine away."""
        if self.starts():
            # torch's handler raises. Python drops that in the hooks after the fork of a worker,
            # which the agent may still be in when the worker has told.
            time.sleep(FORKED_S)
        self.process.terminate()

    def kill(self) -> None:
        """The machine loses its power: agent and workers go at once."""
        self.gone = True
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self.process.pid)
            agent.suspend()
            family = [*agent.children(recursive=True), agent]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.join(10)

    def workers(self) -> list[psutil.Process]:
        """The processes that its workers were, those that still live."""
        found = []
        for pid in (int(path.name) for path in self.folder.glob("told/[0-9]*")):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.environ().get("TOLD") == str(self.folder / "told"):
                    found.append(process)
        return found


@dataclass
class Group:
    """Nodes that meet by one backend at one endpoint."""

    folder: Path
    backend: str
    endpoint: str
    run_id: str
    expects_hang: bool = False
    nodes: list[Node] = field(default_factory=list)

    def start(
        self,
        worker: Callable[[], str],
        *,
        index: int | None = None,
        nproc: int = 1,
        least: int = 1,
        most: int = 1,
        max_restarts: int = 0,
        join_timeout_s: int = 300,
        exit_barrier_s: float = 30.0,
    ) -> Node:
        """One more node, with ``index`` as its place; more than one may have had the same."""
        index = len(self.nodes) if index is None else index
        folder = self.folder / f"node-{len(self.nodes)}"
        folder.mkdir()
        self.orders.mkdir(exist_ok=True)
        launch = {
            "min_nodes": least,
            "max_nodes": most,
            "nproc_per_node": nproc,
            "run_id": self.run_id,
            "role": "trainer",
            "rdzv_endpoint": self.endpoint,
            "rdzv_configs": self._conf(index, nproc, join_timeout_s),
            "max_restarts": max_restarts,
            "monitor_interval": 0.1,
            "local_addr": "127.0.0.1",
            "shutdown_timeout": 5,
        }
        task = Task(
            folder=str(folder),
            orders=str(self.orders),
            worker=worker,
            backend=self.backend,
            launch=launch,
            exit_barrier_s=exit_barrier_s,
        )
        process = CONTEXT.Process(target=run_node, args=(task,))
        process.start()
        node = Node(f"node {index}", process, folder)
        self.nodes.append(node)
        return node

    def start_all(self, count: int, worker: Callable[[], str], **more: Any) -> list[Node]:
        """So many nodes, of which all are needed unless ``least`` says less."""
        more = {"least": count, "most": count} | more
        return [self.start(worker, **more) for _ in range(count)]

    def _conf(self, index: int, nproc: int, join_timeout_s: int) -> dict[str, Any]:
        """Stock knobs that cost half a minute by default are short; detection is as it is."""
        serves = index == 0
        if self.backend == "roster":
            return {
                "node_index": index,
                "last_call_s": 1,
                "join_timeout_s": join_timeout_s,
                "growth_pause_s": 0,
                "workers": nproc,
                "fence_dir": str(self.folder),
            }
        conf: dict[str, Any] = {"last_call_timeout": 1, "join_timeout": join_timeout_s}
        return conf | ({"is_host": "1" if serves else "0"} if self.backend == "c10d" else {})

    # -- orders ----------------------------------------------------------------------------------
    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def order(self, rank: int, what: str) -> None:
        """To one rank: ``return``, ``raise TEXT``, ``exit N``, ``kill SIGNAL``."""
        hidden = self.orders / f".{rank}"
        hidden.write_text(what)
        hidden.rename(self.orders / str(rank))

    def finish(self) -> None:
        """All workers return, in this round and in any later one."""
        (self.orders / "all").touch()

    # -- waiting ---------------------------------------------------------------------------------
    def wait(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
        """Fails with the nodes' logs when the condition does not come true in time."""
        assert self.comes_true(condition, limit_s), "waited in vain\n" + self.logs()

    def comes_true(self, condition: Callable[[], Any], limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def told(self, nodes: Sequence[Node], workers: int) -> None:
        """Waits until so many workers of each node have told who they are."""
        self.wait(lambda: all(len(node.starts()) >= workers for node in nodes))

    def endings(self) -> str:
        """How the nodes end: one phrase if they all do alike, else one for each."""
        nodes = [node for node in self.nodes if not node.gone]
        limit_s = STUCK_S if self.expects_hang else LIMIT_S
        self.comes_true(lambda: all(node.ended() for node in nodes), limit_s)
        ways = [(node.name, node.ending()) for node in nodes]
        if len({way for _, way in ways}) == 1:
            return ways[0][1]
        return ", ".join(f"{name} {way}" for name, way in ways)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}: {node.ending()}\n{node.log()}" for node in self.nodes)

    def end(self) -> None:
        """Kills what is left, the workers of dead agents too."""
        for node in self.nodes:
            node.kill()
            for process in node.workers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
