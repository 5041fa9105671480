"""Which node of the plan this is, and where others reach it: one small class per target."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

from launcher import contract
from launcher.agent.settings import NodeTask
from launcher.errors import InputError
from launcher.node_plan import Elastic, NodePlan

POD_IP = "POD_IP"
"""Set by the manifest from the downward API; names may not resolve before a pod is ready."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One node's index and the address at which other nodes reach it."""

    node_index: int
    local_addr: str


class Source(Protocol):
    """A place that knows which node this is."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        """Raises InputError where it does not say so."""
        ...


class FromPlan:
    """Local processes, Docker, bare hosts: each node has a plan of its own."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        return Identity(node_index=node.node_index, local_addr=node.local_addr)


class FromLauncher:
    """Nodes that share one plan and are told their index."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        return _identity(environ, host_name, contract.NODE_INDEX)


class FromPyTorchJob:
    """RANK where a Master exists; elastic workers are told nothing but their pod's name."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        if "PET_NODE_RANK" in environ or "RANK" in environ:
            name = "PET_NODE_RANK" if "PET_NODE_RANK" in environ else "RANK"
            return _identity(environ, host_name, name)
        match = re.search(r"-worker-(\d+)$", host_name)
        if match is None:
            raise _unknown(f"PET_NODE_RANK and RANK are not set, host name {host_name!r}")
        return Identity(node_index=int(match[1]), local_addr=_address(environ, host_name))


class FromTrainJob:
    """The trainer gives each node its rank as torchrun's variable."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        return _identity(environ, host_name, "PET_NODE_RANK")


class FromIndexedJob:
    """Indexed Jobs, and JobSets made of them."""

    def read(self, node: NodePlan, environ: Mapping[str, str], host_name: str) -> Identity:
        return _identity(environ, host_name, "JOB_COMPLETION_INDEX")


SOURCES: Mapping[str, Source] = {
    "plan": FromPlan(),
    "launcher": FromLauncher(),
    "pytorchjob": FromPyTorchJob(),
    "trainjob": FromTrainJob(),
    "indexed-job": FromIndexedJob(),
}


def identify(task: NodeTask, environ: Mapping[str, str], host_name: str | None = None) -> NodeTask:
    """The task with this node's own index, address, log folder and part in the rendezvous.

    Raises InputError where the place that should know the index does not say it.
    """
    source = SOURCES.get(task.settings.identity)
    if source is None:
        raise InputError(
            f"identity {task.settings.identity!r} is unknown", f"use one of {', '.join(SOURCES)}"
        )
    found = source.read(task.node, environ, host_name or socket.gethostname())
    if found.node_index == task.node.node_index and found.local_addr == task.node.local_addr:
        return task
    return replace(task, node=_with_identity(task, found))


def _with_identity(task: NodeTask, found: Identity) -> NodePlan:
    node = task.node
    nodes = PurePosixPath(node.log_dir).parents[1]
    env = {**dict(node.env), contract.NODE_INDEX: str(found.node_index)}
    rendezvous = node.rendezvous
    if isinstance(rendezvous, Elastic):
        hosts = {store.node_index for store in task.settings.stores[:1]} or {0}
        rendezvous = replace(rendezvous, is_host=found.node_index in hosts)
    return replace(
        node,
        node_index=found.node_index,
        local_addr=found.local_addr,
        env=tuple(env.items()),
        rendezvous=rendezvous,
        log_dir=str(nodes / str(found.node_index) / str(node.incarnation)),
    )


def _identity(environ: Mapping[str, str], host_name: str, name: str) -> Identity:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise _unknown(f"{name}={text!r}")
    return Identity(node_index=int(text), local_addr=_address(environ, host_name))


def _address(environ: Mapping[str, str], host_name: str) -> str:
    return environ.get(POD_IP) or host_name


def _unknown(what: str) -> InputError:
    return InputError(
        f"this node's index is not known: {what}",
        "render the manifest with the launcher, or set agent.identity to where the index is told",
    )
