"""Where a node's outcome is written, and read between its processes. Standard library only."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.ending import NodeOutcome, parse_node_outcome


def read_told(file: int) -> NodeOutcome | None:
    """Reads the outcome that the engine's process wrote, and closes ``file``; None if it died."""
    with open(file) as text:
        # Both processes share the position in the file.
        text.seek(0)
        return parse_node_outcome(text.read())


def write_outcome(path: Path, outcome: NodeOutcome) -> None:
    """Replaces the node's ``outcome.json``. If that fails, only the exit code tells the reason."""
    with contextlib.suppress(OSError):
        write_atomically(path, f"{outcome.to_json(2)}\n")


def write_termination(outcome: NodeOutcome, path: Path) -> None:
    """The outcome as a pod's termination message, if there is a place for one."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        file.truncate()
        file.write(render_termination(outcome))


def render_termination(outcome: NodeOutcome) -> str:
    """The outcome, cut to what a pod's status holds: collateral failures are cut first."""
    shorter = replace(outcome, collateral=())
    for one in (outcome, shorter):
        if len(text := one.to_json()) <= protocol.TERMINATION_LIMIT_BYTES:
            return text
    return replace(shorter, first=None, detail=outcome.detail[:500]).to_json()
