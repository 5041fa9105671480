"""What the probe told, as records: of a node, of its GPUs, of the all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU in nvidia-smi's words: memory in MiB, ``[N/A]`` for what it does not know."""

    index: str
    name: str
    driver_version: str
    bus_id: str
    memory_used: str
    memory_total: str
    ecc_errors: str


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a node is and has; None where it does not say, and for a memlock without limit.

    ``addresses`` are those of its own name, ``names`` those of the other hosts' names; ``xids`` are
    (PCI address, number); ``infiniband`` says of each device whether a port is active.
    """

    host: str
    addresses: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    python: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    shm_bytes: int | None
    memlock_bytes: int | None
    checkpoint_free_bytes: int | None
    checkpoint_error: str
    gpus: tuple[GpuFacts, ...]
    xids: tuple[tuple[str, int], ...]
    infiniband: Mapping[str, bool]
    verbs_devices: bool
    verbs_library: bool
    nccl_env: Mapping[str, str]

    @classmethod
    def from_jsonable(cls, data: Mapping[str, Any]) -> NodeFacts:
        """What ``program.read_node`` gives. Raises ``KeyError`` or ``TypeError``."""
        exact = {
            "addresses": tuple(data["addresses"]),
            "names": {name: tuple(found) for name, found in data["names"].items()},
            "gpus": tuple(GpuFacts(**gpu) for gpu in data["gpus"]),
            "xids": tuple((bus, number) for bus, number in data["xids"]),
        }
        return cls(**{**data, **exact})


@dataclass(frozen=True, kw_only=True)
class MessageRate:
    """One all-reduce of so many bytes; the rate is the bus bandwidth of a ring."""

    bytes: int
    took_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """The whole group's all-reduces, from small to large messages."""

    backend: str
    rates: tuple[MessageRate, ...]

    @classmethod
    def from_jsonable(cls, data: Mapping[str, Any]) -> AllReduce:
        """What ``program.main`` writes. Raises ``KeyError`` or ``TypeError``."""
        rates = tuple(MessageRate(**rate) for rate in data["rates"])
        return cls(backend=data["backend"], rates=rates)
