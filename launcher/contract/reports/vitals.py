"""What a node says of itself every few seconds, in a file that its agent replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.contract.protocol import VITALS_FILE
from launcher.contract.records import parse_record, read_object


@dataclass(frozen=True, kw_only=True)
class GpuVitals:
    """One device, by its index or UUID.

    ``share``: of the last second, the part in which it computed, 0 to 1.
    """

    name: str
    model: str
    share: float
    memory_bytes: int
    memory_limit_bytes: int
    temperature_c: int


@dataclass(frozen=True, kw_only=True)
class TrainingVitals:
    """The last values in the training's ledger; None for what it has not told yet.

    ``saved_at`` is in seconds since the epoch.
    """

    step: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    saved_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """A node at ``at``, seconds since the epoch; ``cpu_share`` is of the machine, 0 to 1.

    ``steps`` are by rank. ``training`` and ``seconds``, what its time went to by the classes of
    ``goodput``, have values on the node that has rank 0.
    """

    at: float
    cpu_share: float
    memory_bytes: int
    memory_limit_bytes: int
    steps: Mapping[str, int] = field(default_factory=dict)
    gpus: tuple[GpuVitals, ...] = ()
    training: TrainingVitals = TrainingVitals()
    seconds: Mapping[str, float] = field(default_factory=dict)


def read_vitals(node_dir: Path) -> Vitals | None:
    """What an incarnation of a node last said; None if it has said nothing that can be read."""
    with contextlib.suppress(ValueError):
        return parse_record(Vitals, read_object(node_dir / VITALS_FILE))
    return None
