"""Values of a job file that are more than a number or a text, and the rules they follow.

Every ``parse_`` function here is pure and raises ``RefusedError``, which says what is accepted; the
field's place (file, line, key) is added by ``job_problems.py``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from launcher.contract import protocol

MAX_NODES = 100_000
"""Far above any cluster; stops a typing error from planning for an hour."""
MAX_PROCESSES = 1024
"""Per node, for the same reason."""
MAX_COUNT = 1_000_000
"""Of restarts and the like: more was meant as another unit."""
MAX_SECONDS = 31_536_000
"""A year. What sleeps, waits and times out cannot take any number."""
MAX_LIMIT_S = 3_600
"""Of the silence after which a node counts as lost."""
MIN_QUANTITY_BYTES = 2**20
"""Below this a bare number was meant as another unit: ``memory: 8`` is 8 bytes."""
MAX_QUANTITY_BYTES = 2**63 - 1
"""Kubernetes and Docker hold sizes as signed 64-bit integers."""

MAX_NAME = 40
"""``<name>-<run>-<index>`` must fit 63 characters; operators allow 52 for what they add to."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_WORDS = (
    "a lower-case letter, then lower-case letters, digits and -, not - at the end, "
    f"at most {MAX_NAME} characters"
)
NODES_PATTERN = r"^[1-9][0-9]*(:[1-9][0-9]*)?$"
NODES_WORDS = 'a whole number >= 1, or MIN:MAX such as "1:4"'
PROCESSES_WORDS = f"a whole number 1..{MAX_PROCESSES}, or auto, gpu or cpu"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$"
QUANTITY_WORDS = "a quantity of at least 1Mi such as 512Mi, 8Gi or 1.5G"
RDMA_WORDS = "true, false or a whole number >= 0"
TORCH_PATTERN = r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$"
TORCH_WORDS = "a torch version such as 2.4 or 2.4.1"
SCALAR_WORDS = "text, a number, true or false"
COMMAND_WORDS = "what torchrun runs: a script path or -m MODULE, then its arguments"
# Docker's own grammar of a reference: [host[:port]/]path[:tag][@digest]
_HOST = r"(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)(:[0-9]+)?|[A-Za-z0-9-]+:[0-9]+"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
IMAGE_PATTERN = f"^(({_HOST})/)?{_PART}(/{_PART})*{_TAG}$"
ENDPOINT_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):[0-9]{1,5}$"
ENDPOINT_WORDS = "HOST:PORT such as etcd.internal:2379, an IPv6 address in brackets"
IMAGE_WORDS = "a Docker image reference such as ghcr.io/me/train:1.4"

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


def parse_name(name: str) -> str:
    """A job's name: DNS-1035, and short enough for every Kubernetes name made from it."""
    if re.fullmatch(NAME_PATTERN[1:-1], name) and len(name) <= MAX_NAME:
        return name
    near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:MAX_NAME].rstrip("-")
    raise RefusedError(NAME_WORDS, fix=f"write {near}" if near else "")


def parse_image(reference: str) -> str:
    """A Docker image reference; whether there is such an image, only the target can tell."""
    if re.fullmatch(IMAGE_PATTERN[1:-1], reference) and len(reference) <= 255:
        return reference
    raise RefusedError(IMAGE_WORDS)


def parse_endpoint(endpoint: str) -> str:
    """Where a rendezvous is; brackets are needed because torch reads ``fd00::1`` as port 1."""
    _, _, port = endpoint.rpartition(":")
    if re.fullmatch(ENDPOINT_PATTERN[1:-1], endpoint) and 1 <= int(port) <= 65535:
        return endpoint
    raise RefusedError(ENDPOINT_WORDS)


def parse_nodes(value: object) -> NodeRange:
    """``2`` or ``"1:4"``, as torchrun's ``--nnodes`` reads them."""
    text = str(value) if type(value) in (int, str) else ""
    if not re.fullmatch(NODES_PATTERN[1:-1], text):
        raise RefusedError(NODES_WORDS)
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


def parse_processes(value: object) -> int | str:
    """Processes per node, as torchrun's ``--nproc-per-node`` reads them."""
    if value in ("auto", "gpu", "cpu"):
        return str(value)
    if type(value) is int and 1 <= value <= MAX_PROCESSES:
        return value
    raise RefusedError(PROCESSES_WORDS)


def parse_rdma(value: object) -> bool | int:
    """Yes or no, or a number of devices."""
    if isinstance(value, int) and value >= 0:
        return value
    raise RefusedError(RDMA_WORDS)


def parse_torch_version(value: object) -> str:
    """``2.4`` or ``2.4.1``; unquoted it is a number to YAML, and means the same."""
    version = str(value)
    if isinstance(value, bool) or not re.fullmatch(TORCH_PATTERN[1:-1], version):
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
            _check_operators(_QUOTED.sub("_", value).split(), _JOINED_OPERATOR)
        except RefusedError:
            raise
        except ValueError:
            raise RefusedError(COMMAND_WORDS, fix="close the quotation, or write a list") from None
    elif isinstance(value, list | tuple):
        words = tuple(_command_word(place, word) for place, word in enumerate(value))
        _check_operators(words, _OPERATOR)
    else:
        raise RefusedError(f"{COMMAND_WORDS}; as a list of words or as one text")
    _check_first_words(words)
    return words


def _command_word(place: int, word: object) -> str:
    if isinstance(word, str | int | float):
        return parse_text(word)
    kind = "nothing" if word is None else "a list or mapping"
    raise RefusedError(
        "words: text or numbers", found=f"{kind} as word {place}", fix="put the word in quotes"
    )


_OPERATOR = re.compile(r"&&|\|\||[|;&<]|[12&]?>>?|[12]>&[12]")
"""A shell's operators."""
_JOINED_OPERATOR = re.compile(rf"{_OPERATOR.pattern}|[12&]?>>?[^>]*[^>]|.+;")
"""In one text also joined to a word: ``>log``, ``train.py;``."""
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
OPERATOR_WORDS = "words for the script: no shell reads them"


def _check_operators(words: Iterable[str], operators: re.Pattern[str]) -> None:
    """No shell reads a command: its operators would become arguments of the script."""
    for word in words:
        if operators.fullmatch(word):
            meant = f"""; if an argument is meant, quote it in one text: "train.py '{word}'\""""
            fix = _in_own_shell(word) + (meant if _OPERATOR.fullmatch(word) else "")
            raise RefusedError(OPERATOR_WORDS, found=word, fix=fix)


def _in_own_shell(operator: str) -> str:
    if ">" in operator:
        return "in your own shell: launcher run JOB > FILE"
    if operator == "<":
        return "let the script open the file"
    if operator == "&":
        return "launcher run JOB --detach"
    return (
        f"in your own shell: launcher run JOB {operator[-2:] if operator[0] in '&|' else ';'} ..."
    )


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
    if words[0] == "-m" and not re.fullmatch(r"[^\s/.]+(\.[^\s/.]+)*", words[1]):
        fix = "name it as import does, such as -m train.main; a script is named without -m"
        raise RefusedError(COMMAND_WORDS, found=f"-m {words[1]}", fix=fix)
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
    {protocol.RUN_DIR, protocol.CHECKPOINT_DIR, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
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
    protocol.CHECKPOINT_DIR: "checkpoint_dir",
    protocol.STOP_GRACE_S: "stop_grace_s",
}

VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
VARIABLE_WORDS = "a variable's name: letters, digits and _, no digit first"
RESERVED_PREFIXES = ("PET_", "TORCHELASTIC_", "LAUNCHER_")
RESERVED_PATTERN = (
    f"^({'|'.join(sorted(_BY_TORCHRUN | _BY_LAUNCHER))})$|^({'|'.join(RESERVED_PREFIXES)})"
)


def parse_variable(name: str) -> str:
    """The name of a variable that a job may set; raises ``RefusedError`` where another owns it."""
    if not re.fullmatch(VARIABLE_PATTERN[1:-1], name):
        bare, equals, _ = name.partition("=")
        found = f"{bare}=(hidden)" if equals else None  # what follows may be a secret's value
        raise RefusedError(VARIABLE_WORDS, found=found)
    if not re.search(RESERVED_PATTERN, name):
        return name
    is_launchers = name in _BY_LAUNCHER or name.startswith("LAUNCHER_")
    owner = "the launcher sets this one" if is_launchers else "torchrun sets this one"
    fix = f"use the key {_KEY_INSTEAD[name]}" if name in _KEY_INSTEAD else "remove it"
    if name in (protocol.RUN_DIR, protocol.CHECKPOINT_DIR):
        # Names that a script may well have had before it met the launcher.
        fix += f"; if it is the script's own, rename it there and here: MY_{name}"
    raise RefusedError(f"names of your own; {owner} for every worker", fix=fix, found=name)


# -- mounts ---------------------------------------------------------------------------------


MOUNT_PATTERN = r"^[^:]+:[^:]+(:(ro|rw))?$"
MOUNT_WORDS = "source:target, source:target:ro, or the keys source, target, read_only"
HOST_PATH_WORDS = "a path, absolute or relative; ~ is not expanded"
TARGET_WORDS = "an absolute path in the container, without : and .."


def split_mount(value: object) -> object:
    """``source:target[:ro|rw]`` as the mapping of the long form; anything else as it is."""
    if not isinstance(value, str):
        return value
    source, target, mode = (*value.split(":"), "", "")[:3]
    if not re.fullmatch(MOUNT_PATTERN[1:-1], value):
        raise RefusedError(MOUNT_WORDS)
    return {"source": source, "target": target, "read_only": mode == "ro"}


def parse_host_path(path: str) -> str:
    """A path on the launcher's side, absolute or relative to where the launcher is called."""
    if not path or path.startswith("~"):
        fix = "write the folder in full" if path else ""
        raise RefusedError(HOST_PATH_WORDS, fix=fix)
    return path


def parse_mount_target(path: str) -> str:
    """Where a mount appears in the container: absolute, normal, and not in the launcher's place."""
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise RefusedError(TARGET_WORDS)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise RefusedError("a path below /, which is the image's own")
    if parts[0] == protocol.CONTAINER_RUN_DIR.split("/")[1]:
        raise RefusedError(f"a path outside /{parts[0]}, which belongs to the launcher")
    return "/" + "/".join(parts)


LISTEN_PATTERN = r"^[A-Za-z0-9:][A-Za-z0-9.:-]*$"
LISTEN_WORDS = "an address of the node to listen on, such as 127.0.0.1 or 0.0.0.0"
LABEL_PATTERN = r"^(?!launcher\.)[^=]+$"
LABEL_WORDS = "a label's name, without = and not starting with launcher."
ADDRESS_WORDS = "an IP address, or host-gateway"


def parse_label(name: str) -> str:
    """A Docker label's name that is not one of the launcher's own."""
    if not re.fullmatch(LABEL_PATTERN[1:-1], name):
        raise RefusedError(LABEL_WORDS, found=name or "nothing")
    return name


def parse_host_address(address: str) -> str:
    """An IP address, or ``host-gateway``, which Docker replaces by the host's own."""
    import ipaddress

    if address == "host-gateway":
        return address
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise RefusedError(ADDRESS_WORDS) from None
