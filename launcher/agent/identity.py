"""Which node of the plan this is, and where others reach it."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.errors import InputError
from launcher.contract.node_plan import Elastic, NodePlan

FROM_PLAN = "plan"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One node's index and the address at which other nodes reach it."""

    node_index: int
    local_addr: str


INDEX_VARIABLES: Mapping[str, tuple[str, ...]] = {
    FROM_PLAN: (),
    "launcher": (protocol.NODE_INDEX,),
    "pytorchjob": (protocol.NODE_RANK, "RANK"),
    "trainjob": (protocol.NODE_RANK,),
    "indexed-job": ("JOB_COMPLETION_INDEX",),
}
"""The variables that tell a node its index; by plan, each node has a plan of its own."""
POD_SOURCES = frozenset({"pytorchjob", "trainjob", "indexed-job"})
"""Of these, the nodes are pods that share one plan, and a person or an operator resizes them."""


def identify(task: NodeTask, environ: Mapping[str, str], host_name: str | None = None) -> NodeTask:
    """The task with this node's own index, address, size, log folder and part in the rendezvous.

    Raises InputError where the place that should know the index does not say it.
    """
    source = task.settings.identity
    if source not in INDEX_VARIABLES:
        raise InputError(
            f"identity {source!r} is unknown", f"use one of {', '.join(INDEX_VARIABLES)}"
        )
    found = Identity(node_index=task.node.node_index, local_addr=task.node.local_addr)
    if source != FROM_PLAN:
        name = host_name or environ.get(protocol.POD_NAME) or socket.gethostname()
        found = Identity(
            node_index=_read_index(source, environ, name),
            local_addr=environ.get(protocol.POD_IP) or name,
        )
    if task.settings.identity in POD_SOURCES:
        task = _as_told(task, environ, found)
    if found.node_index == task.node.node_index and found.local_addr == task.node.local_addr:
        return task
    return replace(task, node=_with_identity(task, found))


def claim_incarnation(task: NodeTask) -> NodeTask:
    """The task with the first incarnation that no earlier pod of this node has taken.

    Only for nodes that share a plan: a controller does not tell how often it replaced a pod. An
    incarnation is taken by creating its folder. Raises OSError where that fails.
    """
    if task.settings.identity not in POD_SOURCES:
        return task
    node_folder = Path(task.node.log_dir).parent
    node_folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        try:
            (node_folder / str(number)).mkdir()
        except FileExistsError:
            continue
        env = {**dict(task.node.env), protocol.INCARNATION: str(number)}
        log_dir = str(node_folder / str(number))
        node = replace(task.node, incarnation=number, env=tuple(env.items()), log_dir=log_dir)
        return replace(task, node=node)
    raise AssertionError("there is always another number")


def _as_told(task: NodeTask, environ: Mapping[str, str], found: Identity) -> NodeTask:
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
        settings = replace(settings, health_host=found.local_addr)
    return NodeTask(node=node, settings=settings)


def _read_nodes(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    return (int(match[1]), int(match[2] or match[1])) if match else None


def _with_identity(task: NodeTask, found: Identity) -> NodePlan:
    node = task.node
    nodes = PurePosixPath(node.log_dir).parents[1]
    prefix = protocol.LINE_PREFIX.format(node_index=found.node_index)
    env = {
        **dict(node.env),
        protocol.NODE_INDEX: str(found.node_index),
        protocol.LINE_PREFIX_TEMPLATE: prefix,
    }
    rendezvous = node.rendezvous
    if isinstance(rendezvous, Elastic):
        hosts = [store.node_index for store in task.settings.stores[:1]] or [0]
        rendezvous = replace(rendezvous, is_host=found.node_index in hosts)
    return replace(
        node,
        node_index=found.node_index,
        local_addr=found.local_addr,
        env=tuple(env.items()),
        rendezvous=rendezvous,
        log_dir=str(nodes / str(found.node_index) / str(node.incarnation)),
    )


def _read_index(source: str, environ: Mapping[str, str], host_name: str) -> int:
    variables = INDEX_VARIABLES[source]
    name = next((name for name in variables if name in environ), None)
    # Elastic workers of a PyTorchJob are told nothing but their pod's name.
    match = re.search(r"-worker-(\d+)$", host_name) if source == "pytorchjob" else None
    if name is None and match:
        return int(match[1])
    text = environ.get(name or variables[0], "")
    if text.isascii() and text.isdigit():
        return int(text)
    found = f"{name or variables[0]}={text!r}"
    if name is None and source == "pytorchjob":
        found = f"{' and '.join(variables)} are not set, and this pod is called {host_name!r}"
    raise InputError(
        f"this node's index is not known: {found}",
        "render the manifest with the launcher, or set agent.identity to where the index is told",
    )
