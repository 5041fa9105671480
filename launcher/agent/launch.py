"""Runs torch's elastic agent once, and says how it ended. Imports torch."""

from __future__ import annotations

import dataclasses
import logging
import sys
import traceback
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from launcher.agent import guard, preload
from launcher.agent.disk import CAUSE, is_full
from launcher.agent.gpu import GpuBusyError
from launcher.agent.logs import RunFolderLogs
from launcher.agent.node import Node
from launcher.agent.watched import NodeEnding, register_watched
from launcher.contract import protocol
from launcher.contract.agent_settings import ROSTER, NodeTask
from launcher.contract.errors import DiskFullError, name_signal
from launcher.contract.node_plan import Static
from launcher.contract.reasons import Reason

INEXHAUSTIBLE = 1_000_000_000
"""torch's own count of restarts; a loss inside a collective would use it up."""


def run_elastic_agent(
    task: NodeTask, node: Node, archive: str, *, forks: bool
) -> tuple[Reason, str]:
    """Blocks until the workers are done for good. Call from the main thread."""
    _quieten_torch()
    config = _build_config(task, node, forks=forks)
    command = task.node.literal_command
    try:
        if forks:
            elastic_launch(config, guard.enter_forked)(*command)
        else:
            elastic_launch(config, sys.executable)("-u", archive, "worker", *command)
    except BaseException as error:
        reason, detail = _name_ending(error, node)
    else:
        reason, detail = Reason.COMPLETED, ""
    if reason is Reason.COMPLETED and node.link and not node.link.is_over():
        return reason, protocol.OTHERS_GO_ON
    return reason, detail


def _build_config(task: NodeTask, node: Node, *, forks: bool) -> LaunchConfig:
    plan, settings = task.node, task.settings
    static = isinstance(plan.rendezvous, Static)
    logs = RunFolderLogs(
        node,
        endpoint=_endpoint(task),
        exit_grace_s=settings.exit_grace_s,
        max_restarts=plan.max_restarts,
        tee=settings.tee,
    )
    values: dict[str, Any] = {
        "min_nodes": plan.min_nodes,
        "max_nodes": plan.max_nodes,
        "nproc_per_node": plan.nproc_per_node,
        "run_id": plan.rendezvous.id,
        # torchrun's own default, not that of LaunchConfig.
        "role": "default",
        "rdzv_endpoint": _endpoint(task),
        "rdzv_backend": "static" if static else register_watched(_backend(task), node),
        "rdzv_configs": _rdzv_configs(task),
        # The static backend reuses its store at a restart: its restarts are the launcher's.
        "max_restarts": 0 if static else INEXHAUSTIBLE,
        "monitor_interval": settings.monitor_interval_s,
        "start_method": "forkserver" if forks else "spawn",
        "logs_specs": logs,
        "log_line_prefix_template": dict(plan.env).get(protocol.LINE_PREFIX_TEMPLATE),
        "local_addr": plan.local_addr,
        "shutdown_timeout": int(settings.stop_grace_s),
    }
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    return LaunchConfig(**{name: value for name, value in values.items() if name in known})


def _backend(task: NodeTask) -> str:
    assert not isinstance(task.node.rendezvous, Static)
    return task.node.rendezvous.backend


def _endpoint(task: NodeTask) -> str:
    rendezvous = task.node.rendezvous
    if isinstance(rendezvous, Static):
        host, port = rendezvous.master_addr, rendezvous.master_port
    else:
        host, port = rendezvous.endpoint_host, rendezvous.endpoint_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rdzv_configs(task: NodeTask) -> dict[str, Any]:
    rendezvous = task.node.rendezvous
    if isinstance(rendezvous, Static):
        # A number: as text no node's would be equal to 0, and nobody would serve the store.
        return {"rank": task.node.node_index}
    configs: dict[str, Any] = dict(rendezvous.conf)
    if rendezvous.backend in ("c10d", ROSTER):
        # Inferred, it is wrong for Services, CNAMEs and second interfaces.
        configs["is_host"] = "1" if rendezvous.is_host else "0"
    if rendezvous.backend == ROSTER:
        configs["node_index"] = str(task.node.node_index)
        configs["max_restarts"] = str(task.node.max_restarts)
        configs["hold_newcomers"] = "1"
    return configs


def _name_ending(error: BaseException, node: Node) -> tuple[Reason, str]:
    """Total: whatever torch's agent raises has a reason."""
    match error:
        case NodeEnding(reason=reason, detail=detail):
            return reason, detail
        case SignalException():
            if node.attempts.have_succeeded():
                # Stopped while it waited for the others: its own work is done.
                if node.link:
                    node.link.leave_finished()
                return Reason.COMPLETED, ""
            if node.link:
                # The others re-form at once, and need not find out.
                node.link.leave()
            return Reason.PREEMPTED, f"the agent got {name_signal(error.sigval)}"
        case ChildFailedError():
            node.ends = node.attempts.end()
            if node.ends and node.ends[0].cause == CAUSE:
                return Reason.DISK_FULL, node.describe_disk(node.ends[0].message)
            return Reason.TRAINING_FAILED, ""
        case preload.ServerGoneError():
            return Reason.AGENT_FAILED, str(error)
        case GpuBusyError():
            return Reason.GPU_BUSY, str(error)
        case DiskFullError():
            return Reason.DISK_FULL, str(error)
        case RendezvousClosedError():
            return Reason.RENDEZVOUS_CLOSED, "another node ended the run"
        case RendezvousTimeoutError():
            return Reason.RENDEZVOUS_UNREACHABLE, "too few nodes came in time"
    if is_full(error):
        return Reason.DISK_FULL, node.describe_disk(str(error).partition("\n")[0])
    if isinstance(
        error, RendezvousConnectionError | RendezvousStateError | DistNetworkError | DistStoreError
    ):
        lost = node.had_rendezvous
        first_line = str(error).partition("\n")[0]
        return Reason.STORE_LOST if lost else Reason.RENDEZVOUS_UNREACHABLE, first_line
    traceback.print_exception(error)
    return Reason.AGENT_FAILED, f"{type(error).__name__}: {error}"


def _quieten_torch() -> None:
    """Of a failed worker the agent itself says what torch would, in one line instead of fifty.

    Formatting that exception, torch would import torch._dynamo: 0.9 s within the restart.
    """
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
