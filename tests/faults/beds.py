"""Where faults are made: processes, containers, hosts, Slurm, the Kubernetes test server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bed:
    """What the command line is given so that the run is there; ``at`` is the bed itself."""

    options: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    at: Any = None


@contextmanager
def opened(on: str, project: Path, env: dict[str, str]) -> Iterator[Bed]:
    """A bed of this kind; it is gone afterwards. ``env`` is what else the command is given."""
    with BEDS[on](project) as bed:
        yield Bed(options=bed.options, env=bed.env | env, at=bed.at)


@contextmanager
def processes(project: Path) -> Iterator[Bed]:
    yield Bed(options=("--on", "local"))


@contextmanager
def containers(project: Path) -> Iterator[Bed]:
    yield Bed(options=("--on", "docker"))


BEDS = {"processes": processes, "docker": containers}
