"""What the launcher and the program on a host say to each other; after how long without its
launcher a node ends."""

from __future__ import annotations

from launcher.targets.hosts.program.wire import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FOLLOWED_S = 10.0
"""How long a run counts as followed after its launcher was last heard; then its nodes end."""
IDLE_LIMIT_S = 3600.0
"""A conversation in which nothing is heard for so long ends: a cut connection may stay silent."""
RUNS_DIR, CHECKPOINTS_DIR, OUTPUTS_DIR = "runs", "checkpoints", "outputs"
"""In a host's ``state_dir``."""


class FunctionCall(Record):
    """Calls a function of a module beside this one, ``MODULE.NAME``, with these arguments.

    The argument ``blob`` is the bytes that come with the message, if it is named. The conversation
    ends if the host needs longer than ``limit_s``. If ``machine`` is named, any other machine
    refuses the call.
    """

    function: str
    arguments: Mapping[str, Any]
    blob: str = ""
    limit_s: float = IDLE_LIMIT_S
    machine: str = ""


class Answered(Record):
    """The ``value`` that a call has returned: JSON, or records."""

    value: Any


class Refusal(Record):
    """Why a request cannot be done; ``fix`` is empty if the error says what to correct."""

    error: str
    fix: str = ""


class RequestError(Exception):
    """The request cannot be done; the launcher shows this after the host's name."""


# -- leases and nodes ------------------------------------------------------------------------------


class Lease(Record):
    """What a node of a run holds of a host: ``gpus`` by their ids, or ``slots``.

    ``taken_at`` is in seconds since the epoch; ``age_s`` is set when a lease is read.
    """

    run_id: str
    node_index: int
    owner: str
    gpus: Sequence[str]
    slots: int
    detached: bool = False
    taken_at: float = 0.0
    age_s: float = 0.0

    @property
    def holding(self) -> str:
        """What it holds, in words."""
        return f"GPUs {','.join(self.gpus)}" if self.gpus else f"{self.slots} slots"


class HeldNode(Record):
    """The hold that has a node on this host, and what that node is asked, without the variables.

    ``user`` is who uses the hold.
    """

    run_dir: str
    request: str
    user: str


class KeeperSpec(Record):
    """What a node's keeper starts, or has a held node start.

    The keeper ends the node of a run that is not ``detached`` after ``followed_s`` seconds without
    its launcher.
    """

    run_id: str
    node_index: int
    node_dir: str
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    unset: Sequence[str]
    secrets: Mapping[str, str]
    container: str = ""
    detached: bool
    stop_grace_s: float
    followed_s: float = FOLLOWED_S
    held: HeldNode | None = None


class NodeSeen(Record):
    """A node's ``state``, a value of ``NodeState``, and how the node ended, if it has."""

    state: str
    exit_code: int | None = None
    out_of_memory: bool = False
    detail: str = ""


# -- runs and their files --------------------------------------------------------------------------


class RunOnHost(Record):
    run_id: str
    plan: str
    nodes: Sequence[int]
    lives: bool
    began_at: float


class LeftOnHost(Record):
    """``is_cut``: the run's folder is still there, which a launcher removes at the end."""

    run_id: str
    age_s: float
    size_bytes: int
    is_cut: bool


class FilePart(Record):
    """Bytes of a file from ``offset`` on. ``new``: they replace whatever is there by that name.

    ``at`` is the host's time of the file's last change.
    """

    file: str
    offset: int
    new: bool
    at: float


class NodesSeen(Record):
    """Sent at each change, and every second as a sign of life."""

    nodes: Mapping[str, NodeSeen]
    """By ``index.incarnation``."""


# -- what a host is --------------------------------------------------------------------------------


class Address(Record):
    """One address of a host; ``speed`` of its interface in Mbit/s, 0 where it is not known."""

    interface: str
    address: str
    speed: int = 0


class HostReport(Record):
    """What a host has; empty values for what it lacks.

    ``docker`` is the engine's version, ``runtimes`` are its container runtimes. ``image_id`` is
    the id of ``image``, and ``torch_version`` then what the image's label says. The launcher adds
    ``clock_offset_s``: the host's clock minus its own.
    """

    machine: str = ""
    cpu_count: int = 0
    gpus: Sequence[str] = ()
    python: str = ""
    python_version: str = ""
    torch_version: str = ""
    interfaces: Sequence[Address] = ()
    state_dir: str = ""
    user: str = ""
    free_ports: Sequence[int] = ()
    leases: Sequence[Lease] = ()
    has_rdma: bool = False
    docker: str = ""
    runtimes: Sequence[str] = ()
    image: str | None = None
    image_id: str = ""
    clock_offset_s: float = 0.0
