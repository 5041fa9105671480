"""States of a node and of a run."""

from __future__ import annotations

import enum


class NodeState(enum.Enum):
    """One node at an instant, as its target reports it."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    MISSING = "missing"
    """The target does not know it: never started, or removed by someone else."""


class RunState(enum.StrEnum):
    """A run, as ``launcher status`` shows it; a run whose launcher is gone is called orphaned."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
"""States of a run that has ended."""
