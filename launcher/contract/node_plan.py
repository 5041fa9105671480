"""All that a node is started with, as plain data: its part of the launch plan, and the settings of
its agent with their defaults, such as when a node counts as silent and workers as hung.

Standard library only, because the node reads it where this project is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from string import Template
from typing import Literal

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.records import dump_record, parse_text

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


SCHEMA = 1
ROSTER = "roster"
"""The agent's own rendezvous backend."""
Start = Literal["fresh", "fork"]
DETECTION_LIMIT_S = 10.0
"""A node silent for so long is lost, unless the job says otherwise."""
HANG_MIN_S = 300
"""Shorter silence of a worker is no hang, unless the job says otherwise."""
HANG_MAX_S = 1800
"""Longer silence is a hang. Without restarts there is no upper bound."""
GPU_FREE_LIMIT_S = 60
"""How long a restart waits for the dead workers' GPU memory."""
START_LIMIT_S = 600
"""How long pods may fail to start, such as while their image cannot be pulled."""


@dataclass(frozen=True, kw_only=True)
class StoreEndpoint:
    """A host that may serve the rendezvous store: the first one does, the next takes over."""

    host: str
    port: int
    node_index: int


NEVER_S = 365 * 24 * 3600.0
"""A limit that no run reaches."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """How the agent runs its workers; every field has a value that suits most jobs."""

    start: Start = "fresh"
    """``fresh``: a new interpreter for each worker; ``fork``: forked from a warm process."""
    preload: tuple[str, ...] = ()
    """Modules that the warm process imports besides torch; they must not start threads or CUDA."""
    identity: str = "plan"
    """Where the node's index comes from: the plan, or an operator (see ``identity.py``)."""
    stop_grace_s: float = 30.0
    """From the stop request to the kill."""
    exit_grace_s: float = 2.0
    """From SIGTERM to SIGKILL of a worker before a restart; a stop has ``stop_grace_s``."""
    same_failure_limit: int = 3
    """The run ends after so many equal failures in a row without progress between them."""
    stores: tuple[StoreEndpoint, ...] = ()
    """Candidates for the store; empty: the plan's endpoint alone."""
    meet_dir: str = ""
    """A folder that all nodes see. A node that serves the store writes the store's addresses there,
    and the others read them. Empty: nodes use the addresses in ``stores`` and in the plan."""
    awaits_nodes: bool = False
    """With ``meet_dir``: the nodes wait for missing ones, which may start much later, and for lost
    ones, which come back by themselves."""
    hang_factor: float = 10.0
    """Silence is a hang beyond this multiple of the longest silence seen in the same phase."""
    hang_min_s: float = HANG_MIN_S
    """No idle silence shorter than this is a hang; 0 switches the watchdog off."""
    hang_max_s: float = HANG_MAX_S
    """The limit never grows beyond this; workers that compute are left alone until then."""
    gpu_free_limit_s: float = GPU_FREE_LIMIT_S
    health_host: str = protocol.LOOPBACK
    health_port: int | None = None
    """None: no health server. 0: any free port, named in the log."""
    tee: bool = True
    """Copy the workers' output to the node's console. False where the launcher follows the files:
    a restart is then 0.1 s faster, as torch has no copying threads to end."""
    hold_idle_s: float = 0.0
    """Above 0: the node belongs to a hold, and ends after so many seconds without a run."""
    debug_rank: int | None = None
    """The rank whose ``breakpoint()`` opens a debugger; the others ignore theirs, and wait."""
    debug_editor: bool = False
    """Whether the debugger is debugpy, for an editor, instead of pdb."""
    in_image: bool = False
    """Whether the node's image contains the agent; else the launcher sends it with the plan."""


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """All that one agent is started with."""

    node: NodePlan
    settings: AgentSettings = AgentSettings()

    def to_json(self) -> str:
        """JSON that ``parse_task`` reads into an equal task; defaults are left out."""
        return dump_record({"schema": SCHEMA, "node": self.node, "settings": self.settings}) + "\n"


def parse_task(text: str) -> NodeTask:
    """Reads what ``to_json`` wrote. Raises InputError, which names what is wrong."""
    try:
        return parse_text(NodeTask, text, SCHEMA)
    except ValueError as error:
        raise InputError(
            f"the node plan cannot be read: {error}",
            "use the agent archive and the plan of one version of the launcher",
        ) from error
