"""What torch's elastic agent is given: its settings, each worker's log folder and variables, and
handlers of signals that wait for the supervisor. Imports torch."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.launcher.api import LaunchConfig

from launcher.agent import signals
from launcher.agent.addresses import interface_of
from launcher.agent.engine.attempts import WorkerPlace
from launcher.agent.engine.node_state import Node
from launcher.agent.engine.tee import Tee
from launcher.agent.worker import guard, recorder
from launcher.contract import protocol
from launcher.contract.node_plan import NodePlan, NodeTask, Static

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
MONITOR_S = 0.05
"""Between two looks of torch's agent at workers and membership."""
_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_TORCHS_HANDLER = "_terminate_process_handler"


def build_config(
    task: NodeTask, node: Node, backend: str, tee: Tee | None, *, forks: bool
) -> LaunchConfig:
    """The settings of one round, whose handlers torch knows by the name ``backend``."""
    plan, settings, endpoint = task.node, task.settings, name_endpoint(task.node)
    values: dict[str, Any] = {
        "min_nodes": plan.min_nodes,
        "max_nodes": plan.max_nodes,
        "nproc_per_node": plan.nproc_per_node,
        "run_id": plan.rendezvous.id,
        # torchrun's own default, not that of LaunchConfig.
        "role": "default",
        "rdzv_endpoint": endpoint,
        "rdzv_backend": backend,
        "rdzv_configs": configure(plan),
        # The static backend reuses its store at a restart, so the launcher restarts it. The agent
        # counts the others' restarts by cause: torch would count a node lost in a collective too.
        "max_restarts": 0 if backend == "static" else 1_000_000_000,
        "monitor_interval": MONITOR_S,
        "start_method": "forkserver" if forks else "spawn",
        "logs_specs": RunFolderLogs(node, task, endpoint, tee),
        "local_addr": plan.local_addr,
        "shutdown_timeout": int(settings.stop_grace_s),
    }
    # Older versions of torch lack some of them.
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    return LaunchConfig(**{name: value for name, value in values.items() if name in known})


def name_endpoint(plan: NodePlan) -> str:
    """Where the node's rendezvous is, as torch writes it."""
    match plan.rendezvous:
        case Static(master_addr=host, master_port=port):
            pass
        case elastic:
            host, port = elastic.endpoint_host, elastic.endpoint_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configure(plan: NodePlan) -> dict[str, Any]:
    """The ``rdzv_configs`` for torch; ``NodeHandler`` reads the rest from the plan."""
    # A number: torch compares it with 0 to find the node that serves the store.
    return {"rank": plan.node_index} if isinstance(plan.rendezvous, Static) else {}


def quieten_torch() -> None:
    """Silences torch's 50 lines about a failed worker; the agent tells it in one line.

    To format them, torch would also import torch._dynamo, which takes 0.9 s of the restart.
    """
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)


def keep_signals_from_torch() -> None:
    """Makes torch's handler, which ends the workers, do nothing until the supervisor orders it.

    torch sets it by this name at each start of the workers. Idempotent.
    """
    handler = getattr(multiprocessing_api, _TORCHS_HANDLER, None)
    if handler is not None and handler.__module__ == multiprocessing_api.__name__:
        setattr(multiprocessing_api, _TORCHS_HANDLER, signals.only_when_ordered(handler))


class RunFolderLogs(LogsSpecs):
    """Makes a folder for each attempt and rank, and sets the agent's variables of each worker.

    torch calls ``reify`` once for each start of the worker group.
    """

    def __init__(self, node: Node, task: NodeTask, endpoint: str, tee: Tee | None) -> None:
        super().__init__(task.node.log_dir, redirects=Std.ALL)
        self._node, self._task, self._endpoint, self._copier = node, task, endpoint, tee
        # With ``meet_dir`` the plan knows neither the address nor the interface. gloo would take
        # the interface of the host's name, which may lead to the loopback.
        self._interface = interface_of(task.node.local_addr) if task.settings.meet_dir else ""

    @property
    def root_log_dir(self) -> str:
        return self._task.node.log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the folders, and adds to each worker's environment what the guard needs."""
        ranks = {local_rank: int(env["RANK"]) for local_rank, env in envs.items()}
        workers = self._node.attempts.begin(ranks)
        number = self._node.attempts.number
        self._node.ledger.write("workers-started", attempt=number, ranks=[*ranks.values()])
        for worker in workers:
            self._add_variables(envs[worker.local_rank], worker)
        stdouts = {w.local_rank: str(w.folder / protocol.STDOUT_FILE) for w in workers}
        stderrs = {w.local_rank: str(w.folder / protocol.STDERR_FILE) for w in workers}
        if self._copier:
            self._copier.follow(workers)
        return LogsDest(
            stdouts=stdouts,
            stderrs=stderrs,
            tee_stdouts={},
            tee_stderrs={},
            error_files={w.local_rank: str(w.folder / protocol.ERROR_FILE) for w in workers},
        )

    def _add_variables(self, env: dict[str, str], worker: WorkerPlace) -> None:
        if roster := self._node.roster:
            mine, status = roster.membership, roster.status
            env[protocol.GENERATION] = str(mine.generation if mine else status.generation)
            env[protocol.AGENT_SOCKET] = str(self._node.healer.path)
            env[protocol.JOINS] = str(int(self._node.healer.joins))
        if self._interface and GLOO_INTERFACE not in os.environ:
            env[GLOO_INTERFACE] = self._interface
        env |= recorder.settings(torch._C._distributed_c10d)
        # torch sets it in the agent, after the warm process was forked.
        if signals := os.environ.get(_SIGNALS):
            env[_SIGNALS] = signals
        if (debugged := self._task.settings.debug_rank) is not None:
            kind = "editor" if self._task.settings.debug_editor else "pdb"
            env[protocol.DEBUGGER] = kind if worker.rank == debugged else "none"
        env.update(
            {
                "TORCHELASTIC_ERROR_FILE": str(worker.folder / protocol.ERROR_FILE),
                # torch is given a number that never runs out; scripts see the user's.
                "TORCHELASTIC_MAX_RESTARTS": str(self._task.node.max_restarts),
                # Another store may have taken over since the node's plan was made.
                protocol.RDZV_ENDPOINT: self._endpoint,
                protocol.NODE_DIR: self._task.node.log_dir,
                protocol.NODE_ATTEMPT: str(self._node.attempts.number),
                protocol.HEARTBEAT: str(worker.heartbeat),
                guard.WORKER_DIR: str(worker.folder),
                guard.EXIT_GRACE_S: str(self._task.settings.exit_grace_s),
                guard.PARENT_PID: str(os.getpid()),
                protocol.ASKED_FILE: str(worker.asked_file),
            }
        )
