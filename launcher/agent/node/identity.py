"""Which node of the plan this is, by the variables of its engine or operator; its address and its
incarnation."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.agent.addresses import LOOPBACK, choose_address
from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import Elastic, NodePlan, NodeTask, place_node

FROM_PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class Source:
    """How a node of one kind finds out which it is.

    ``index`` are the variables that may tell its index; the first that is set counts. ``is_pod``:
    a person or an operator resizes the group, and the downward API tells the address.
    ``is_task``: an engine started a process on each node, which looks for its address itself.
    """

    index: tuple[str, ...] = ()
    is_pod: bool = False
    is_task: bool = False

    @property
    def shares_plan(self) -> bool:
        """Whether all nodes have one plan, so that each claims its incarnation."""
        return self.is_pod or self.is_task


ARRAY_INDEX, STEP_TASKS = "SLURM_ARRAY_TASK_ID", "SLURM_STEP_NUM_TASKS"
PEER = "SLURM_LAUNCH_NODE_IPADDR"
"""An address of the same cluster."""
SOURCES: Mapping[str, Source] = {
    FROM_PLAN: Source(),
    "launcher": Source(index=(protocol.NODE_INDEX,)),
    "pytorchjob": Source(index=(protocol.NODE_RANK, "RANK"), is_pod=True),
    "trainjob": Source(index=(protocol.NODE_RANK,), is_pod=True),
    "indexed-job": Source(index=("JOB_COMPLETION_INDEX",), is_pod=True),
    "slurm": Source(index=(ARRAY_INDEX, "SLURM_PROCID"), is_task=True),
    "starter": Source(index=(protocol.NODE_INDEX,), is_task=True),
}
"""By name, as in ``AgentSettings.identity``. With ``plan``, each node has a plan of its own."""


def identify(task: NodeTask, environ: Mapping[str, str], host_name: str | None = None) -> NodeTask:
    """The task with this node's own index, address, size, log folder and rendezvous.

    Raises InputError if the environment does not tell the index, or does not fit the plan.
    """
    name = task.settings.identity
    source = SOURCES.get(name)
    if source is None:
        raise InputError(f"identity {name!r} is unknown", f"use one of {', '.join(SOURCES)}")
    if name == FROM_PLAN:
        return task
    if source.is_task:
        index = _read_task_index(task, environ)
        addr = task.node.local_addr
        if task.settings.meet_dir:  # Else there are no others to reach it.
            addr = choose_address([environ[PEER]] if PEER in environ else [])
    else:
        host = host_name or environ.get(protocol.POD_NAME) or socket.gethostname()
        index = _read_index(name, environ, host)
        addr = environ.get(protocol.POD_IP) or host
    if source.is_pod:
        task = _with_changed_sizes(task, environ, addr)
    if (index, addr) == (task.node.node_index, task.node.local_addr):
        return task
    return replace(task, node=_with_identity(task, index, addr))


def source_of(task: NodeTask) -> Source:
    """The source of a task that ``identify`` has checked."""
    return SOURCES[task.settings.identity]


def claim_incarnation(task: NodeTask) -> NodeTask:
    """The task with the first incarnation that no earlier start of this node has taken.

    Changes only nodes that share a plan: nothing tells how often a pod or a task was replaced.
    Raises OSError if the incarnation's folder cannot be made.
    """
    if not source_of(task).shares_plan:
        return task
    number = take_incarnation(Path(task.node.log_dir).parent)
    return replace(task, node=place_node(task.node, task.node.node_index, number))


def take_incarnation(node_folder: Path) -> int:
    """The first incarnation that no earlier start of a node has taken; makes its folder."""
    node_folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            (node_folder / str(number)).mkdir()
            return number
        except FileExistsError:
            number += 1


def _with_changed_sizes(task: NodeTask, environ: Mapping[str, str], addr: str) -> NodeTask:
    """The task with the sizes that a person or an operator has changed since it was planned."""
    node, settings = task.node, task.settings
    nodes = _read_nodes(environ.get(protocol.NNODES, ""))
    if nodes is not None and nodes != (node.min_nodes, node.max_nodes):
        if node.max_nodes == 1:
            raise InputError(
                f"{protocol.NNODES}={environ[protocol.NNODES]}, but this was planned for one node",
                "render the manifest again with the new nnodes",
            )
        node = replace(node, min_nodes=nodes[0], max_nodes=nodes[1])
    workers = environ.get(protocol.NPROC_PER_NODE, "")
    if workers.isascii() and workers.isdigit() and int(workers) > 0:
        node = replace(node, nproc_per_node=int(workers))
    # Else the training would cut its batches for the size that was planned.
    largest = str(node.max_nodes * node.nproc_per_node)
    env = {**dict(node.env), protocol.MAX_WORLD_SIZE: largest}
    node = replace(node, env=tuple(env.items()))
    if settings.health_host == LOOPBACK:
        settings = replace(settings, health_host=addr)
    return NodeTask(node=node, settings=settings)


def _read_nodes(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    return (int(match[1]), int(match[2] or match[1])) if match else None


def _with_identity(task: NodeTask, index: int, addr: str) -> NodePlan:
    node = place_node(task.node, index, task.node.incarnation)
    rendezvous = node.rendezvous
    if isinstance(rendezvous, Elastic):
        hosts = [store.node_index for store in task.settings.stores[:1]] or [0]
        rendezvous = replace(rendezvous, is_host=index in hosts)
    return replace(node, local_addr=addr, rendezvous=rendezvous)


def _read_task_index(task: NodeTask, environ: Mapping[str, str]) -> int:
    source = source_of(task)
    if task.node.max_nodes == 1:
        # In an array of runs with one node each, the index numbers the runs.
        return 0
    if environ.get(STEP_TASKS, "1") != "1":
        # In an array whose elements have several nodes, the array's index is not a node's.
        source = replace(source, index=tuple(n for n in source.index if n != ARRAY_INDEX))
    return _parse_index(task.settings.identity, source, environ)


def _read_index(name: str, environ: Mapping[str, str], host_name: str) -> int:
    source = SOURCES[name]
    # Elastic workers of a PyTorchJob are told nothing but their pod's name.
    match = re.search(r"-worker-(\d+)$", host_name) if name == "pytorchjob" else None
    if match and not any(variable in environ for variable in source.index):
        return int(match[1])
    return _parse_index(name, source, environ, f", and this pod is called {host_name!r}")


def _parse_index(name: str, source: Source, environ: Mapping[str, str], pod: str = "") -> int:
    """The index in the first of the source's variables that is set. Raises InputError."""
    variable = next((name for name in source.index if name in environ), None)
    text = environ.get(variable or "", "")
    if text.isascii() and text.isdigit():
        return int(text)
    given = f"{variable or source.index[0]}={text!r}"
    if variable is None and len(source.index) > 1:
        are_unset = f"{' and '.join(source.index)} are not set"
        given = are_unset + (pod if source.is_pod else "")
    fix = "render the manifest with the launcher, or set agent.identity to the source of the index"
    if source.is_task:
        fix = "start one agent on each node by the engine that the plan was made for"
    raise InputError(f"this node's index is not known: {given}", fix)
