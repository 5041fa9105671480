"""What Slurm's commands print about a cluster, as records. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from launcher.targets.slurm.plan import parse_time_s

NODE_FORMAT = "%N|%n|%P|%T|%c|%m|%G|%f|%v|%E"
"""For ``sinfo -N``: the reason comes last, as it may hold any character."""
TAKES_JOBS = ("idle", "mixed", "allocated", "completing", "planned", "blocked")
NONE_WORDS = ("", "(null)", "none", "N/A")


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """One node in one partition, as sinfo tells it; ``state`` may end in flags such as ``*``."""

    name: str
    host: str
    partition: str
    is_default: bool
    state: str
    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]
    features: tuple[str, ...]
    version: str
    reason: str

    @property
    def takes_jobs(self) -> bool:
        """Whether a job can start there, now or when the one before it has ended."""
        return self.state.rstrip("~#!%$@^-+") in TAKES_JOBS

    def count_gpus(self, kind: str | None) -> int:
        """Its GPUs of a type, or of all types."""
        return sum(count for of_kind, count in self.gpus if kind in (None, of_kind))

    @property
    def told_gpus(self) -> str:
        """As ``--gres`` names them."""
        return ",".join(f"gpu:{kind}:{count}".replace("::", ":") for kind, count in self.gpus)


def parse_nodes(text: str) -> tuple[ClusterNode, ...]:
    """Of ``sinfo -N`` with ``NODE_FORMAT``; a node has a line for each of its partitions."""
    rows = (line.split("|", NODE_FORMAT.count("|")) for line in text.splitlines())
    return tuple(_node(row) for row in rows if len(row) == NODE_FORMAT.count("|") + 1)


def _node(row: list[str]) -> ClusterNode:
    name, host, partition, state, cpus, memory, gres, features, version, reason = row
    return ClusterNode(
        name=name,
        host=host,
        partition=partition.rstrip("*"),
        is_default=partition.endswith("*"),
        state=state,
        cpus=int(cpus) if cpus.isdigit() else 0,
        memory_mb=int(memory) if memory.isdigit() else 0,
        gpus=parse_gpus(gres),
        features=() if features in NONE_WORDS else tuple(features.split(",")),
        version="" if version in NONE_WORDS else version,
        reason="" if reason in NONE_WORDS else reason.strip(),
    )


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """Types and counts of ``gpu:a100:2(S:0-1),gpu:4,nvme:1``; an untyped one has no type."""
    found = []
    for one in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = one.split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            found.append((words[1] if len(words) > 2 else "", int(words[-1])))
    return tuple(found)


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Of ``scontrol --oneliner show partition``, by name."""
    found = (dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines())
    return {fields["PartitionName"]: fields for fields in found if "PartitionName" in fields}


def parse_config(text: str) -> dict[str, str]:
    """Of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def seconds_of(text: str) -> float:
    """Of a limit as Slurm prints it: ``8:00:00``, ``1-00:00:00``, ``30 sec``, ``UNLIMITED``."""
    if re.fullmatch(r"(\d+-)?\d+(:\d\d){1,2}", text):
        return parse_time_s(text) or 0
    number = text.partition(" ")[0]
    return int(number) if number.isdigit() else math.inf


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """What a folder lies on; ``source`` is a device, or a server with its path."""

    type: str
    source: str


def parse_file_system(mounts: str, folder: str) -> FileSystem:
    """Of ``/proc/self/mountinfo``; ``folder`` is absolute, without symbolic links."""
    best, found = "", FileSystem(type="?", source="?")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        # A later mount hides an earlier one on the same folder.
        if len(point) >= len(best) and f"{folder}/".startswith(f"{point.rstrip('/')}/"):
            best, found = point, FileSystem(type=kinds[0], source=kinds[1])
    return found
