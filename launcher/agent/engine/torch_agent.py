"""Runs torch's elastic agent once: its settings, each worker's log folder and variables, and what
each of its errors means. Imports torch."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import traceback
from typing import Any

import torch
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from launcher.agent import signals
from launcher.agent.addresses import interface_of
from launcher.agent.disk import is_full, says_full
from launcher.agent.endings import DONE, judge_finished, judge_raised
from launcher.agent.engine import preload
from launcher.agent.engine.attempts import WorkerPlace
from launcher.agent.engine.gpu_memory import GpuBusyError
from launcher.agent.engine.node_state import Node
from launcher.agent.engine.rendezvous import configure, name_endpoint, register_handler
from launcher.agent.engine.tee import Tee
from launcher.agent.membership import group
from launcher.agent.membership.client import ReplacedError
from launcher.agent.worker import guard, recorder
from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import name_signal
from launcher.contract.node_plan import Static

_STORE_ERRORS = (
    *(rdzv.RendezvousConnectionError, rdzv.RendezvousStateError),
    *(DistNetworkError, DistStoreError),
)
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
MONITOR_S = 0.05
"""Between two looks of torch's agent at workers and membership."""
_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_TORCHS_HANDLER = "_terminate_process_handler"


def run_elastic_agent(task: NodeTask, node: Node, archive: str, *, forks: bool) -> Ending:
    """Blocks until the workers are done for good. Call from the main thread."""
    _quieten_torch()
    _keep_signals_from_torch()
    tee = Tee(task.node.node_index) if task.settings.tee else None
    config = _build_config(task, node, tee, forks=forks)
    command = task.node.literal_command
    try:
        if forks:
            elastic_launch(config, guard.enter_forked)(*command)
        else:
            elastic_launch(config, sys.executable)("-u", archive, "worker", *command)
        end = DONE
    except BaseException as error:
        end = judge_error(error, node)
    finally:
        if tee:
            tee.close()
    return judge_finished(end, node.roster.status.closed if node.roster else None)


def _build_config(task: NodeTask, node: Node, tee: Tee | None, *, forks: bool) -> LaunchConfig:
    plan, settings, rendezvous = task.node, task.settings, task.node.rendezvous
    backend = "static" if isinstance(rendezvous, Static) else register_handler(node)
    endpoint = name_endpoint(plan)
    values: dict[str, Any] = {
        "min_nodes": plan.min_nodes,
        "max_nodes": plan.max_nodes,
        "nproc_per_node": plan.nproc_per_node,
        "run_id": rendezvous.id,
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


_MEANING: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Cause], ...] = (
    (SignalException, Cause.PREEMPTED),
    (ChildFailedError, Cause.TRAINING_FAILED),
    (preload.ServerGoneError, Cause.AGENT_FAILED),
    (GpuBusyError, Cause.GPU_BUSY),
    (rdzv.RendezvousClosedError, Cause.RENDEZVOUS_CLOSED),
    (rdzv.RendezvousTimeoutError, Cause.RENDEZVOUS_UNREACHABLE),
    (_STORE_ERRORS, Cause.STORE_LOST),
)
"""What each error means by itself; any other one is the agent's own."""


def judge_error(error: BaseException, node: Node) -> Ending:
    """Why the node ends, from whatever torch's agent raises; tells the group that it goes."""
    if node.ending is not None:
        return node.ending
    roster, succeeded = node.roster, node.attempts.have_succeeded()
    if isinstance(error, SignalException) and roster:
        if succeeded:
            roster.say("finish")
        # So that the others re-form at once.
        roster.leave()
    if isinstance(error, ChildFailedError):
        node.attempts.ends = node.attempts.end()
    cause = next((cause for kind, cause in _MEANING if isinstance(error, kind)), None)
    if cause is Cause.RENDEZVOUS_CLOSED and not isinstance(error, ReplacedError):
        status = roster.status if roster else group.GroupStatus()
        by_fault = status.cause is group.RoundCause.FAULT
        return node.judge.judge_closing(status.closed, node.attempts.ends, by_fault=by_fault)
    # The coordinator, which takes the generations, says it in words.
    is_state = isinstance(error, rdzv.RendezvousStateError)
    full = is_full(error) or (is_state and says_full(str(error)))
    if cause is None and not full:
        traceback.print_exception(error)
    return judge_raised(
        cause,
        say_error(error) if cause or full else f"{type(error).__name__}: {error}",
        says_full=full,
        had_group=node.had_rendezvous or node.reached_store,
        succeeded=succeeded,
        first=next(iter(node.attempts.ends), None),
    )


def say_error(error: BaseException) -> str:
    """An error with a cause, in a line; empty where the worker that failed says it."""
    match error:
        case SignalException():
            return f"the agent got {name_signal(error.sigval)}"
        case ChildFailedError():
            return ""
        case rdzv.RendezvousTimeoutError():
            return "too few nodes came in time"
    return str(error).partition("\n")[0]


def _quieten_torch() -> None:
    """Silences torch's 50 lines about a failed worker; the agent tells it in one line.

    To format them, torch would also import torch._dynamo, which takes 0.9 s of the restart.
    """
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)


def _keep_signals_from_torch() -> None:
    """Has torch's handler, which ends the workers, wait for the supervisor's word.

    torch sets it by this name at each start of the workers. Idempotent.
    """
    handler = getattr(multiprocessing_api, _TORCHS_HANDLER, None)
    if handler is not None and handler.__module__ == multiprocessing_api.__name__:
        setattr(multiprocessing_api, _TORCHS_HANDLER, signals.only_when_told(handler))


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
                protocol.ASKED_FILE: str(worker.asked),
            }
        )
