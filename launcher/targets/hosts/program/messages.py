"""What the launcher and the program on a host say to each other; after how long without its
launcher a node ends."""

from __future__ import annotations

from launcher.targets.hosts.program.wire import TYPE_CHECKING, Answer, Asked, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FOLLOWED_S = 10.0
"""How long a run counts as followed after its launcher was last heard; then its nodes end."""
IDLE_LIMIT_S = 3600.0
"""A conversation in which nothing is heard for so long ends: a cut connection may stay silent."""
RUNS_DIR, CHECKPOINTS_DIR, OUTPUTS_DIR = "runs", "checkpoints", "outputs"
"""In a host's ``state_dir``."""


class HostRequest(Record, Asked[Answer]):
    """A request to a host; the ``Answer`` is a record, or plain JSON in ``Answered``.

    The conversation ends if the host needs longer than ``limit_s``. If ``machine`` is named, any
    other machine refuses the request.
    """

    limit_s: float = IDLE_LIMIT_S
    machine: str = ""


class Answered(Record):
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


class TakeLease(HostRequest["Sequence[Lease]"]):
    """Takes a lease for a node, whose earlier incarnation is ended first; or answers with the
    leases in the way.

    The conversation holds the lease until ``StartNode`` hands it to the node's keeper. Both end if
    the launcher that follows the run in ``run_dir`` is silent for a while.
    """

    lease: Lease
    lease_dir: str
    run_dir: str
    slots_limit: int | None
    """How many slots the host has in all; None for no limit."""
    containers: bool


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


class StartNode(HostRequest[None]):
    """Starts a node's keeper, and hands it the lease of this conversation."""

    node: KeeperSpec


class StopNodes(HostRequest[None]):
    """Ends a run's ``node``, or all nodes that the run has on the host.

    ``tell_launcher`` also ends the launcher that follows the run.
    """

    run_id: str
    node: int | None
    grace_s: float
    run_dir: str
    tell_launcher: bool
    containers: bool


class NodeSeen(Record):
    """A node's ``state``, a value of ``NodeState``, and how the node ended, if it has."""

    state: str
    exit_code: int | None = None
    out_of_memory: bool = False
    detail: str = ""


# -- runs and their files --------------------------------------------------------------------------


class HasCode(HostRequest[bool]):
    state_dir: str
    hash: str


class StoreCode(HostRequest[bool]):
    """Keeps the archive that comes with the message.

    With a ``base``, the first ``start`` bytes and the last ``end`` bytes are those of the archive
    with that hash. Answers False if that archive is missing or has changed.
    """

    state_dir: str
    hash: str
    base: str = ""
    start: int = 0
    end: int = 0


class PrepareRun(HostRequest[None]):
    """Makes a run's folder, with ``files`` (path, text), code, and the agent from the message.

    Only the user may read the ``token``. Refused if a path of ``needed`` is missing.
    """

    run_dir: str
    state_dir: str
    folders: Sequence[str]
    files: Sequence[Sequence[str]]
    agent: str | None
    code: str | None
    needed: Sequence[str]
    token: str = ""


class RemoveRun(HostRequest[int]):
    """Removes a run's folder, and its checkpoint folder if that is empty.

    Files that the training wrote beside its code are moved to ``outputs_dir``, if one is named;
    the answer is how many. Those that ``WatchRun`` sent within ``brought_bytes`` are not moved.
    """

    run_dir: str
    checkpoint_dir: str
    outputs_dir: str
    brought_bytes: int = 0


class FindImage(HostRequest[str]):
    """The id of an image, empty if the engine has none; ``pull``: pulls a missing image first."""

    image: str
    pull: bool


class AskLauncher(HostRequest[bool]):
    """Leaves the request ``name`` for the launcher that follows a run; answers if it was taken.

    Refused if no launcher follows the run.
    """

    run_dir: str
    name: str
    text: str


class TakeLook(HostRequest["Mapping[str, str]"]):
    """Has a node look at its workers; answers with the look's files by name, or nothing."""

    run_dir: str
    node: int
    id: str
    request: str
    wait_s: float


class ReadNewest(HostRequest[str]):
    """The text of a file in the folder of a node's newest incarnation; empty if it has none.

    ``folder`` has a folder for each incarnation.
    """

    folder: str
    name: str


class ListRuns(HostRequest["Sequence[RunOnHost]"]):
    state_dir: str
    run_id: str
    """The beginning of an id."""


class RunOnHost(Record):
    run_id: str
    plan: str
    nodes: Sequence[int]
    lives: bool
    began_at: float


class FindLeft(HostRequest["Sequence[LeftOnHost]"]):
    """Finds what runs that do not live have left, and removes what the run ``remove`` has."""

    state_dir: str
    remove: str = ""


class LeftOnHost(Record):
    """``is_cut``: the run's folder is still there, which a launcher removes at the end."""

    run_id: str
    age_s: float
    size_bytes: int
    is_cut: bool


class WatchRun(HostRequest[bool]):
    """Sends what a run writes there as it comes, and its node's states, until the connection ends.

    ``have`` is the size of each file that the launcher has, by its path in the run folder.
    ``once`` sends what is there, with at most ``beside_code_bytes`` of what the training wrote
    beside its code, and ends with the answer whether a launcher somewhere drives the run.
    ``follows`` is set by the launcher that drives the run: without its
    beats the node ends.
    """

    run_dir: str
    node: int
    have: Mapping[str, int]
    once: bool = False
    beside_code_bytes: int = 0
    follows: bool = False


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


class ReadClock(HostRequest[float]): ...


class ReadHost(HostRequest["HostReport"]):
    """Tries ``ports``; looks up ``image``, or if empty ``own_image`` tagged ``cuda`` or ``cpu``."""

    state_dir: str
    lease_dir: str
    python: str | None
    ports: Sequence[int] = ()
    gpus: bool = True
    runtime: str = "none"
    image: str = ""
    own_image: str = ""


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


class RunProbe(HostRequest["Any"]):
    """Runs the Python program that comes with the message, and answers the JSON that it prints.

    ``checkpoint_dir`` may be missing: the program is given the nearest folder that is there.
    """

    python: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    checkpoint_dir: str
    wait_s: float


class Listen(HostRequest[int]):
    """Opens a port that the kernel chooses, and that greets callers with ``token``."""

    token: str


class CallHosts(HostRequest["Mapping[str, str]"]):
    """Makes the calls (address, port, token); a call counts if it gets its token back.

    The answer has the address that such a call came from, by the call's place as text.
    """

    calls: Sequence[Sequence[Any]]
    wait_s: float


class LeaveToken(HostRequest[None]):
    """Makes a file in ``folder``, which stays as long as the conversation.

    If the folder is missing, the file goes into the nearest one above it: hosts that share that
    one will share the folder.
    """

    folder: str
    name: str


class FindTokens(HostRequest["Sequence[str]"]):
    """Which of the tokens ``names`` are there; waits for all of them, ``wait_s`` at most."""

    folder: str
    names: Sequence[str]
    wait_s: float
