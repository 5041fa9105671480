"""What a job file accepts as a name, a number of nodes or processes, a quantity such as ``512Mi``,
devices, a path; which variables a job may not set; and the error that refuses a value.

Every ``parse_`` function here is pure and raises ``NotAcceptedError``; ``problems.py`` adds the
place (file, line, key), and the words of the schema (``types.py``) if the error has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.contract import protocol


class NotAcceptedError(ValueError):
    """A value that a job file may not hold: what is accepted there, and what to write instead.

    Without ``accepted`` the message has the words of the field's schema. ``found`` is what to show
    instead of the whole value, if that would say too much or too little.
    """

    def __init__(self, accepted: str = "", *, fix: str = "", given: str | None = None) -> None:
        super().__init__(f"accepted: {accepted}" if accepted else "not accepted")
        self.accepted = accepted
        self.fix = fix
        self.given = given


MAX_NODES = 100_000
"""More than any cluster has; planning for a mistyped number could take an hour."""
MAX_PROCESSES = 1024
"""Per node, for the same reason."""
MIN_QUANTITY_BYTES = 2**20
"""A smaller number was meant in another unit: ``memory: 8`` is 8 bytes."""
MAX_NAME = 40
"""Names such as ``<name>-<run>-<index>`` have at most 63 characters, and operators add to them."""

IN_IMAGE = "image"
"""The value of the key ``code`` for code that the image holds."""

NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
NODES = r"[1-9][0-9]*(:[1-9][0-9]*)?"
QUANTITY = r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?"
TORCH = r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?"
LABEL = r"(?!launcher\.)[^=]+"


@dataclass(frozen=True)
class NodeRange:
    """How many nodes a job runs on; elastic when it may go on with fewer than ``max``."""

    min: int
    max: int

    @property
    def is_elastic(self) -> bool:
        return self.min < self.max

    def __str__(self) -> str:
        return f"{self.min}:{self.max}" if self.is_elastic else str(self.max)


def parse_name(name: str) -> str:
    """A job's name: DNS-1035, and short enough for every Kubernetes name made from it."""
    if re.fullmatch(NAME, name) and len(name) <= MAX_NAME:
        return name
    near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    near = f"job-{near}" if near[:1].isdigit() else near
    raise NotAcceptedError(fix=f"write {near[:MAX_NAME].rstrip('-')}" if near else "")


def parse_nodes(value: object) -> NodeRange:
    """``2`` or ``"1:4"``, as torchrun's ``--nnodes`` reads them."""
    text = str(value) if type(value) in (int, str) else ""
    if not re.fullmatch(NODES, text):
        raise NotAcceptedError
    low, _, high = text.partition(":")
    if max(len(low), len(high)) > 9 or max(int(low), int(high or low)) > MAX_NODES:
        raise NotAcceptedError(f"at most {MAX_NODES} nodes")
    nodes = NodeRange(int(low), int(high or low))
    if nodes.min > nodes.max:
        fix = f"write {nodes.max}:{nodes.min}"
        raise NotAcceptedError("MIN:MAX with MIN not above MAX", fix=fix)
    return nodes


def dump_nodes(nodes: NodeRange) -> int | str:
    """As a job file has it: ``2``, or ``1:2``."""
    return str(nodes) if nodes.is_elastic else nodes.max


def parse_quantity_bytes(quantity: str | int) -> int:
    """The bytes of a Kubernetes quantity (``512Mi``, ``8Gi``, ``1.5G``, ``1048576``)."""
    text = str(quantity)
    if isinstance(quantity, bool) or not re.fullmatch(QUANTITY, text):
        raise NotAcceptedError(fix=_quantity_fix(text))
    n_bytes = parse_whole(text)
    # Kubernetes and Docker hold sizes as signed 64-bit integers.
    if not MIN_QUANTITY_BYTES <= n_bytes <= 2**63 - 1:
        fix = f"write {text}Gi if gibibytes are meant" if n_bytes < 10_000 else ""
        raise NotAcceptedError(fix=fix if text.isdigit() else "")
    return n_bytes


def _quantity_fix(text: str) -> str:
    # docker's and people's spellings (8g, 8GB, 512m); in Kubernetes 512m is half a byte
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt])i?b?", text.lower())
    return f"write {match[1]}{match[2].upper()}i" if match else ""


def check_quantity(value: object) -> str:
    """Checks a quantity and returns its text; ``parse_quantity_bytes`` gives its bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise NotAcceptedError
    parse_quantity_bytes(value)
    return str(value)


def parse_processes(value: object) -> int | str:
    """Processes per node, as torchrun's ``--nproc-per-node`` reads them."""
    if value in ("auto", "gpu", "cpu"):
        return str(value)
    if type(value) is int and 1 <= value <= MAX_PROCESSES:
        return value
    if isinstance(value, bool) or str(value).lower() in ("yes", "on", "all"):
        raise NotAcceptedError(fix="write gpu for one process on each GPU, or a number")
    raise NotAcceptedError


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Which GPUs of a machine: ``count`` of them or all (None), these ``ids``, only unused ones."""

    count: int | None = None
    ids: tuple[str, ...] = ()
    unused: bool = False

    def __str__(self) -> str:
        if self.ids:
            return ",".join((*self.ids, *([""] if len(self.ids) == 1 else [])))
        number = -1 if self.count is None else self.count
        return f"free:{number}" if self.unused else str(number)


DEVICES = r"-1|auto|all|[1-9][0-9]{0,3}|free:[1-9][0-9]{0,3}|[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*,?"
DEVICES_WORDS = "a number, -1 or auto for all, ids such as 1,3 or [1, 3], or free:2"


def parse_devices(value: object) -> Devices:
    """GPUs as people write them: ``2``, ``"2"``, ``[1, 3]``, ``"1,3"``, ``"1,"``, ``-1``, ``auto``,
    ``free:2``."""
    if isinstance(value, list | tuple):
        items = [str(item) for item in value]
    else:
        text = "" if isinstance(value, bool) else str(value).replace(" ", "")
        if not re.fullmatch(DEVICES, text):
            raise NotAcceptedError(DEVICES_WORDS)
        if text == "0":
            raise NotAcceptedError(DEVICES_WORDS, fix='"0," for GPU 0, resources.gpus: 0 for none')
        if text in ("-1", "auto", "all"):
            return Devices()
        if text.isdigit() or text.startswith("free:"):
            return Devices(count=int(text.removeprefix("free:")), unused=":" in text)
        items = [item for item in text.split(",") if item]
    named = re.compile(r"\d{1,4}|(GPU|MIG)-[A-Za-z0-9-]+")
    if not items or not all(named.fullmatch(item) for item in items):
        raise NotAcceptedError(DEVICES_WORDS)
    if len({*items}) < len(items):
        raise NotAcceptedError("each GPU once")
    return Devices(count=len(items), ids=tuple(items))


def parse_rdma(value: object) -> bool | int:
    """True or false, or a number of devices."""
    if isinstance(value, int) and value >= 0:
        return value
    raise NotAcceptedError


def parse_host_path(path: str) -> str:
    """A path on the launcher's side, absolute or relative to where the launcher is called."""
    if not path or path.startswith("~"):
        raise NotAcceptedError(fix="write the folder in full" if path else "")
    return path


# -- variables ------------------------------------------------------------------------------

_BY_TORCHRUN = {*protocol.PLACE_VARIABLES, "ROLE_NAME"}
_BY_LAUNCHER = {protocol.RUN_DIR, protocol.CHECKPOINT_DIR, protocol.OWN_STORE}
_KEY_INSTEAD = {
    "MASTER_PORT": "rdzv.port",
    "WORLD_SIZE": "nnodes and nproc_per_node",
    "LOCAL_WORLD_SIZE": "nproc_per_node",
    protocol.CHECKPOINT_DIR: "checkpoint_dir",
    protocol.STOP_GRACE_S: "stop_grace_s",
}

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
VARIABLE_WORDS = "a variable's name: letters, digits and _, no digit first"
_PREFIXES = ("PET_", "TORCHELASTIC_", "LAUNCHER_")
RESERVED = f"^({'|'.join(sorted(_BY_TORCHRUN | _BY_LAUNCHER))})$|^({'|'.join(_PREFIXES)})"


def parse_variable(name: str) -> str:
    """A variable's name that a job may set; raises ``NotAcceptedError`` for a reserved name."""
    if not re.fullmatch(VARIABLE, name):
        bare, equals, _ = name.partition("=")
        hidden = f"{bare}=(hidden)" if equals else None  # what follows may be a secret's value
        fix = f"write {bare}: a secret's value comes from your environment" if equals else ""
        raise NotAcceptedError(VARIABLE_WORDS, given=hidden, fix=fix)
    if not re.search(RESERVED, name):
        return name
    is_launchers = name in _BY_LAUNCHER or name.startswith("LAUNCHER_")
    owner = "the launcher sets this one" if is_launchers else "torchrun sets this one"
    fix = f"use the key {_KEY_INSTEAD[name]}" if name in _KEY_INSTEAD else "remove it"
    raise NotAcceptedError(f"names of your own; {owner} for every worker", fix=fix, given=name)


_QUANTITY = re.compile(
    r"([+-]?)([0-9]{0,40})(?:\.([0-9]{0,40}))?(?:[eE]([+-]?[0-9]{1,2}))?([numkMGTPE]|[KMGTPE]i|)"
)
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}
_UNITS = {"": 1, **_DECIMAL, **_BINARY}
_PARTS = {"m": 1000, "u": 1000**2, "n": 1000**3}


def parse_quantity(text: str) -> float:
    """A quantity as a number: bytes, cores. Raises ``ValueError`` for anything else."""
    number, parts = _parse(text)
    return number / parts


def parse_whole(text: str) -> int:
    """A quantity as a whole number, rounded up as Kubernetes does. Raises ``ValueError``."""
    number, parts = _parse(text)
    return -(-number // parts)


def _parse(text: str) -> tuple[int, int]:
    """The quantity as an exact fraction."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is no quantity")
    sign, whole, after, exponent, unit = match.groups(default="")
    power = int(exponent or 0) - len(after)
    number = int(f"{sign}{whole}{after}") * _UNITS.get(unit, 1) * 10 ** max(power, 0)
    return number, _PARTS.get(unit, 1) * 10 ** max(-power, 0)


def render_bytes(n_bytes: int) -> str:
    """Bytes in the largest binary unit that gives a whole number."""
    unit = next((u for u, size in reversed(_BINARY.items()) if n_bytes % size == 0), "")
    return f"{n_bytes // _BINARY.get(unit, 1)}{unit}"
