"""Values of a job file that are more than a number or a text, and the rules they follow.

Every ``parse_`` function here is pure and raises ``RefusedError``, which says what is accepted; the
field's place (file, line, key) is added by ``job_problems.py``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from launcher import contract

MAX_NODES = 100_000
"""Far above any cluster; stops a typing error from planning for an hour."""
MIN_QUANTITY_BYTES = 2**20
"""Below this a bare number was meant as another unit: ``memory: 8`` is 8 bytes."""
MAX_QUANTITY_BYTES = 2**63 - 1
"""Kubernetes and Docker hold sizes as signed 64-bit integers."""

NODES_PATTERN = r"^[1-9][0-9]*(:[1-9][0-9]*)?$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$"
QUANTITY_WORDS = "a quantity of at least 1Mi such as 512Mi, 8Gi or 1.5G"
TORCH_PATTERN = r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$"
TORCH_WORDS = "a torch version such as 2.4 or 2.4.1"
COMMAND_WORDS = "what torchrun runs: a script path or -m MODULE, then its arguments"

_UNITS: dict[str, int] = {"": 1} | {
    unit + suffix: base**power
    for power, unit in enumerate("KMGTPE", start=1)
    for base, suffix in ((1000, ""), (1024, "i"))
}
_UNITS["k"] = _UNITS.pop("K")  # Kubernetes writes 10^3 as k, and only 2^10 as Ki


class RefusedError(ValueError):
    """A value that a job file may not hold: what is accepted there, and what to write instead.

    ``found`` is given where showing the whole value would say too much or too little.
    """

    def __init__(self, accepted: str, *, fix: str = "", found: str | None = None) -> None:
        super().__init__(f"accepted: {accepted}")
        self.accepted = accepted
        self.fix = fix
        self.found = found


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


def parse_nodes(value: object) -> NodeRange:
    """``2`` or ``"1:4"``, as torchrun's ``--nnodes`` reads them."""
    text = str(value) if type(value) in (int, str) else ""
    if not re.fullmatch(NODES_PATTERN[1:-1], text):
        raise RefusedError('a whole number >= 1, or MIN:MAX such as "1:4"')
    low, _, high = text.partition(":")
    if max(len(low), len(high)) > 9 or max(int(low), int(high or low)) > MAX_NODES:
        raise RefusedError(f"at most {MAX_NODES} nodes")
    nodes = NodeRange(int(low), int(high or low))
    if nodes.min > nodes.max:
        raise RefusedError("MIN:MAX with MIN not above MAX", fix=f"write {nodes.max}:{nodes.min}")
    return nodes


def dump_nodes(nodes: NodeRange) -> int | str:
    return str(nodes) if nodes.is_elastic else nodes.max


def parse_quantity_bytes(quantity: str | int) -> int:
    """The bytes of a Kubernetes quantity (``512Mi``, ``8Gi``, ``1.5G``, ``1048576``)."""
    text = str(quantity)
    if isinstance(quantity, bool) or not re.fullmatch(QUANTITY_PATTERN[1:-1], text):
        raise RefusedError(QUANTITY_WORDS, fix=_quantity_fix(text))
    unit = text.lstrip("0123456789.")
    n_bytes = math.ceil(Fraction(text.removesuffix(unit)[:40]) * _UNITS[unit])
    if not MIN_QUANTITY_BYTES <= n_bytes <= MAX_QUANTITY_BYTES:
        fix = f"write {text}Gi if gibibytes are meant" if not unit and n_bytes < 10_000 else ""
        raise RefusedError(QUANTITY_WORDS, fix=fix)
    return n_bytes


def _quantity_fix(text: str) -> str:
    # docker's and people's spellings (8g, 8GB, 512m); in Kubernetes 512m is half a byte
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt])i?b?", text.lower())
    return f"write {match[1]}{match[2].upper()}i" if match else ""


def parse_quantity(value: object) -> str:
    """A quantity as its text, checked; its bytes are ``parse_quantity_bytes`` of it."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RefusedError(QUANTITY_WORDS)
    parse_quantity_bytes(value)
    return str(value)


def parse_rdma(value: object) -> bool | int:
    """Yes or no, or a number of devices."""
    if isinstance(value, int) and value >= 0:
        return value
    raise RefusedError("true, false or a whole number >= 0")


def parse_torch_version(version: str) -> str:
    """``2.4`` or ``2.4.1``."""
    if not re.fullmatch(TORCH_PATTERN[1:-1], version):
        raise RefusedError(TORCH_WORDS)
    return version


def parse_text(value: object) -> str:
    """Text, or a plain number or truth value taken as the text that YAML writes it as.

    A job file's own spelling (``1.10``, ``0x10``) is put in place before, by ``jobfile.py``.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise RefusedError(
            "text, a number, true or false", fix='write "" where empty text is meant'
        )
    return value


def parse_command(value: object) -> tuple[str, ...]:
    """What torchrun runs, as a list or as one text split as a POSIX shell splits it."""
    if isinstance(value, str):
        try:
            words = tuple(shlex.split(value))
        except ValueError:
            raise RefusedError(COMMAND_WORDS, fix="close the quotation, or write a list") from None
    elif isinstance(value, list | tuple):
        words = tuple(_command_word(word) for word in value)
    else:
        raise RefusedError(f"{COMMAND_WORDS}; as a list of words or as one text")
    _check_first_words(words)
    return words


def _command_word(word: object) -> str:
    if isinstance(word, str | int | float):
        return parse_text(word)
    raise RefusedError("a list of words: text or numbers", fix="put the word in quotes")


def _check_first_words(words: tuple[str, ...]) -> None:
    if not words or not words[0]:
        raise RefusedError(
            COMMAND_WORDS, found="no words", fix="for example [train.py, --epochs, 3]"
        )
    program = words[0].rsplit("/", 1)[-1]
    if re.fullmatch(r"torchrun|python[0-9.]*|torch\.distributed\.(run|launch)", program):
        fix = f"drop {words[0]}: the launcher starts torchrun, and torchrun starts Python"
        raise RefusedError(COMMAND_WORDS, found=words[0], fix=fix)
    if words[:2] in (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")):
        fix = f"drop -m {words[1]}: the launcher starts torchrun itself"
        raise RefusedError(COMMAND_WORDS, found=f"-m {words[1]}", fix=fix)
    if words[0] == "-m" and (len(words) < 2 or words[1].startswith("-")):
        raise RefusedError(
            COMMAND_WORDS, found="-m without a module", fix="name the module after -m"
        )
    if words[0].startswith("-") and words[0] != "-m":
        fix = "drop it: torchrun's options have keys of their own (nnodes, nproc_per_node, rdzv)"
        raise RefusedError(COMMAND_WORDS, found=words[0], fix=fix)


# -- variables ------------------------------------------------------------------------------

_BY_TORCHRUN = frozenset(
    [
        *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "WORLD_SIZE"),
        *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    ]
)
_BY_LAUNCHER = frozenset(
    {contract.RUN_DIR, contract.CHECKPOINT_DIR, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
)
_KEY_INSTEAD = {
    "MASTER_PORT": "rdzv.port",
    "WORLD_SIZE": "nnodes and nproc_per_node",
    "LOCAL_WORLD_SIZE": "nproc_per_node",
    "PET_NNODES": "nnodes",
    "PET_NPROC_PER_NODE": "nproc_per_node",
    "PET_MAX_RESTARTS": "max_restarts",
    "PET_RDZV_BACKEND": "rdzv.backend",
    "PET_RDZV_CONF": "rdzv.conf",
    "PET_RDZV_ID": "rdzv.id",
    "PET_MASTER_PORT": "rdzv.port",
    contract.CHECKPOINT_DIR: "checkpoint_dir",
    contract.STOP_GRACE_S: "stop_grace_s",
}

VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"


def parse_variable(name: str) -> str:
    """The name of a variable that a job may set; raises ``RefusedError`` where another owns it."""
    if not re.fullmatch(VARIABLE_PATTERN[1:-1], name):
        bare, equals, _ = name.partition("=")
        found = f"{bare}=(hidden)" if equals else None  # what follows may be a secret's value
        raise RefusedError("a variable's name: letters, digits and _, no digit first", found=found)
    if name in _BY_TORCHRUN or name.startswith(("PET_", "TORCHELASTIC_")):
        owner = "torchrun sets it"
    elif name in _BY_LAUNCHER or name.startswith("LAUNCHER_"):
        owner = "the launcher sets it"
    else:
        return name
    fix = f"use the key {_KEY_INSTEAD[name]}" if name in _KEY_INSTEAD else "remove it"
    raise RefusedError(f"variables of your own; {owner} for every worker", fix=fix, found=name)


# -- mounts ---------------------------------------------------------------------------------


def split_mount(value: object) -> object:
    """``source:target[:ro|rw]`` as the mapping of the long form; anything else as it is."""
    if not isinstance(value, str):
        return value
    source, target, mode = (*value.split(":"), "", "")[:3]
    if value.count(":") not in (1, 2) or mode not in ("", "ro", "rw"):
        raise RefusedError("source:target, source:target:ro, or the keys source, target, read_only")
    return {"source": source, "target": target, "read_only": mode == "ro"}


def parse_host_path(path: str) -> str:
    """A path on the launcher's side, absolute or relative to where the launcher is called."""
    if not path or path.startswith("~"):
        fix = "write the folder in full" if path else ""
        raise RefusedError("a path, absolute or relative; ~ is not expanded", fix=fix)
    return path


def parse_mount_target(path: str) -> str:
    """Where a mount appears in the container: absolute, normal, and not in the launcher's place."""
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise RefusedError("an absolute path in the container without : and ..")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise RefusedError("a path below /, which is the image's own")
    if parts[0] == contract.CONTAINER_RUN_DIR.split("/")[1]:
        raise RefusedError(f"a path outside /{parts[0]}, which belongs to the launcher")
    return "/" + "/".join(parts)


def parse_label(name: str) -> str:
    """A Docker label's name that is not one of the launcher's own."""
    if not name or name.startswith("launcher."):
        raise RefusedError("a label's name that does not start with launcher.", fix="rename it")
    return name


def parse_host_address(address: str) -> str:
    """An IP address, or ``host-gateway``, which Docker replaces by the host's own."""
    import ipaddress

    if address == "host-gateway":
        return address
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise RefusedError("an IP address, or host-gateway") from None


def slug(name: str) -> str:
    """The nearest name that ``name`` of a job accepts, or nothing."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:40].rstrip("-")


# -- conflicts between keys -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Two keys that are right alone and wrong together; ``path`` is the one to change."""

    path: tuple[str | int, ...]
    found: str
    accepted: str
    fix: str


def find_conflicts(raw: Mapping[str, object]) -> tuple[Conflict, ...]:
    """What no key can see alone. Reads unchecked data, so that one wrong key hides no conflict."""
    return (*_rendezvous(raw), *_processes(raw), *_secrets(raw), *_mounts(raw))


def _section(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(raw: Mapping[str, object], key: str) -> list[object]:
    value = raw.get(key)
    return list(value) if isinstance(value, list | tuple) else []


def _rendezvous(raw: Mapping[str, object]) -> list[Conflict]:
    if _section(raw, "rdzv").get("backend") != "static":
        return []
    try:
        nodes = parse_nodes(raw.get("nnodes", 1))
    except RefusedError:
        return []
    if not nodes.is_elastic:
        return []
    accepted = f"c10d or etcd-v2, because nnodes is {nodes} and a static group keeps its size"
    fix = f"remove the key, or write nnodes: {nodes.max}"
    return [Conflict(path=("rdzv", "backend"), found="static", accepted=accepted, fix=fix)]


def _processes(raw: Mapping[str, object]) -> list[Conflict]:
    gpus = _section(raw, "resources").get("gpus")
    if raw.get("nproc_per_node") != "gpu" or gpus != 0 or isinstance(gpus, bool):
        return []
    accepted = "a number or cpu, because resources.gpus is 0"
    fix = "write nproc_per_node: cpu, or ask for GPUs"
    return [Conflict(path=("nproc_per_node",), found="gpu", accepted=accepted, fix=fix)]


def _secrets(raw: Mapping[str, object]) -> list[Conflict]:
    env, seen, conflicts = _section(raw, "env"), set(), []
    for index, name in enumerate(_list(raw, "secrets")):
        if not isinstance(name, str):
            continue
        if name in seen or name in env:
            accepted = "each name once" if name in seen else "a name that is not also under env"
            fix = "remove one of the two"
            conflicts.append(
                Conflict(path=("secrets", index), found=name, accepted=accepted, fix=fix)
            )
        seen.add(name)
    return conflicts


def _mounts(raw: Mapping[str, object]) -> list[Conflict]:
    seen: dict[str, int] = {}
    conflicts = []
    for index, value in enumerate(_list(raw, "mounts")):
        try:
            mount = split_mount(value)
            target = parse_mount_target(str(mount["target"])) if isinstance(mount, dict) else ""
        except (RefusedError, KeyError):
            continue
        if target in seen:
            accepted = f"a target of its own; mounts.{seen[target]} has this one"
            path = ("mounts", index, "target")
            conflicts.append(
                Conflict(path=path, found=target, accepted=accepted, fix="give it another target")
            )
        seen.setdefault(target, index)
    return conflicts
