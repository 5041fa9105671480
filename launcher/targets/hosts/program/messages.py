"""What the launcher and the program on a host say to each other: records with typed fields, also in
files on hosts; after how long without its launcher a node ends.

A message is a record and bytes, with both lengths in front. Records are no dataclasses, and nothing
here imports ``typing`` on a host: each conversation starts a Python, for which dataclasses would
cost 30 to 50 ms of processor time, and ``typing`` 12 ms (docs/decisions/0030).
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO, Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


FOLLOWED_S = 10.0
"""How long a run counts as followed after its launcher was last heard; then its nodes end."""
IDLE_LIMIT_S = 3600.0
"""A conversation in which nothing is heard for so long ends: a cut connection may stay silent."""
RUNS_DIR, CHECKPOINTS_DIR, OUTPUTS_DIR = "runs", "checkpoints", "outputs"
"""In a host's ``state_dir``."""
MAGIC = b"\0launcher-host 1\n"
"""The host's first words; what a login shell prints before them is skipped."""
BEAT = b"."
"""Sent by a launcher that watches a host, to say that it is still there."""
MOST_BYTES = 64 << 20
"""The most of a message, without the bytes that come with it."""
_KINDS: dict[str, type[Record]] = {}
_KIND = "@record"
"""The key that names the kind of a record in JSON."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """The annotations of the class are its fields, and their values the defaults."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.__name__] = cls

    def __init__(self, **given: Any) -> None:
        cls = type(self)
        for name in cls.__annotations__:
            if name not in given and not hasattr(cls, name):
                raise TypeError(f"{cls.__name__} without {name}")
            vars(self)[name] = given.pop(name) if name in given else getattr(cls, name)
        if given:
            raise TypeError(f"{cls.__name__} has no {', '.join(given)}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    def having(self, **changes: Any) -> Self:
        """The same record with other values in some fields."""
        return type(self)(**{**vars(self), **changes})

    def to_json(self) -> str:
        """As JSON: each record is an object that also names its kind."""
        return json.dumps(
            self, default=lambda record: {_KIND: type(record).__name__, **vars(record)}
        )

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """From decoded JSON; ignores fields that this version of the class does not have.

        Raises ``ValueError`` if a field is missing.
        """
        try:
            known = cls.__annotations__
            return cls(**{name: value for name, value in data.items() if name in known})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no {cls.__name__}: {error}") from None


def parse_json(text: bytes) -> Any:
    """JSON in which objects that name a kind are records. Raises ``ValueError``."""
    return json.loads(text, object_hook=_read_record)


def _read_record(data: dict[str, Any]) -> Any:
    kind = _KINDS.get(str(data.get(_KIND)))
    return kind.from_json(data) if kind else data


def write_frame(stream: IO[bytes], message: Record, blob: bytes = b"") -> None:
    """Sends a message as ASCII; text that is no UTF-8 arrives as it was (``surrogateescape``)."""
    data = message.to_json().encode()
    stream.write(b"%d %d\n" % (len(data), len(blob)) + data + blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[Record, bytes] | None:
    """The next message; None at the end of the stream. Raises ``ValueError`` for anything else."""
    # Ended by the other end, whose end or loss closes the stream.
    head = stream.readline(64)
    if not head:
        return None
    size, blob_size = map(int, head.split())
    if not 0 <= size <= MOST_BYTES or blob_size < 0:
        raise ValueError(f"a message of {size} bytes")
    data, blob = stream.read(size), stream.read(blob_size)
    if len(data) != size or len(blob) != blob_size:
        raise ValueError("cut off within a message")
    message = parse_json(data)
    if not isinstance(message, Record):
        raise ValueError(f"{data[:80]!r} is no message")
    return message, blob


# -- calls ---------------------------------------------------------------------------------------


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
    """A run as one host has it: its ``plan`` as JSON, and the indices of nodes with a folder there.

    ``lives``: a node runs, or a launcher is heard. ``began_at`` is in seconds since the epoch.
    """

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
