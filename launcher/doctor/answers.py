"""The probe's answers as records: a node, its GPUs, the all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
class NodeAnswer:
    """What a node is and has. None means unknown; for ``memlock_bytes`` it means no limit.

    ``addresses`` belong to its own name, ``names`` maps the other hosts' names to addresses;
    ``xids`` are (PCI address, number); ``infiniband`` tells whether a device has an active port.
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


@dataclass(frozen=True, kw_only=True)
class MessageRate:
    """One all-reduce of so many bytes; the rate is the bus bandwidth of a ring."""

    bytes: int
    took_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """All-reduces of the whole group, from small to large messages."""

    backend: str
    rates: tuple[MessageRate, ...]
