"""One node's part of a launch plan: all that the node needs to know, as plain data.

Standard library only, because the node reads it where this project is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from string import Template

from launcher.contract import protocol

Env = tuple[tuple[str, str], ...]
"""Variables in a fixed order, so that equal plans render to equal bytes."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """A rendezvous by fixed address and node rank; a lost node ends the attempt."""

    master_addr: str
    master_port: int
    id: str


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """A rendezvous by an endpoint that nodes join and leave.

    ``endpoint_host`` is where the rendezvous store listens; it is not MASTER_ADDR, which each
    round takes from its rank-0 node. ``id`` must be new for each attempt: a failed agent closes
    its id for ever. ``is_host`` says whether this node serves the store; it is never inferred.
    """

    backend: str
    endpoint_host: str
    endpoint_port: int
    id: str
    is_host: bool
    conf: Env = ()


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of the host made visible in a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """What one node runs: an agent with ``nproc_per_node`` workers of ``command``.

    ``name`` is the node's host name in the run and the name of its container; names sort as
    their indices do, because torchrun orders ranks by address as text. ``local_addr`` is the
    address at which other nodes reach this one. ``secrets`` are names of variables whose values
    are taken from the launcher's environment at submission and appear nowhere else.
    ``device_ids`` are the accelerators of this node alone, empty on CPU.
    """

    node_index: int
    incarnation: int = 0
    name: str
    local_addr: str
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    max_restarts: int
    rendezvous: Static | Elastic
    command: tuple[str, ...]
    workdir: str | None = None
    env: Env
    secrets: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_ids: tuple[str, ...] = ()
    log_dir: str

    @property
    def literal_command(self) -> tuple[str, ...]:
        """The command, escaped for torch's agent, which takes each word for a template: unescaped,
        ``$$`` would reach the worker as ``$``, and ``$local_rank`` as a number."""
        return tuple(
            word.replace("$", "$$") if _is_template(word) else word for word in self.command
        )


def place_node(node: NodePlan, index: int, incarnation: int) -> NodePlan:
    """The node with another index or incarnation, also in its variables and its log folder."""
    variables = {
        protocol.NODE_INDEX: str(index),
        protocol.INCARNATION: str(incarnation),
        protocol.LINE_PREFIX_TEMPLATE: protocol.LINE_PREFIX.format(node_index=index),
    }
    return replace(
        node,
        node_index=index,
        incarnation=incarnation,
        env=tuple((dict(node.env) | variables).items()),
        log_dir=str(PurePosixPath(node.log_dir).parents[1] / str(index) / str(incarnation)),
    )


def _is_template(word: str) -> bool:
    return Template(word).safe_substitute(local_rank="") != word
