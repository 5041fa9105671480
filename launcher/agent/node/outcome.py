"""The outcome that the supervisor writes of its node. Standard library only."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.report import AgentReport
from launcher.contract import protocol
from launcher.contract.node_outcome import NodeOutcome


def make_outcome(
    report: AgentReport,
    *,
    exit_code: int,
    node_index: int,
    incarnation: int,
    started_at: float,
    finished_at: float,
) -> NodeOutcome:
    """The node's outcome: the first cause apart from what followed from it."""
    causes = [end for end in report.ends if not end.is_collateral]
    first = causes[0] if causes else (report.ends[0] if report.ends else None)
    return NodeOutcome(
        node_index=node_index,
        incarnation=incarnation,
        reason=report.reason,
        exit_code=exit_code,
        detail=report.detail,
        attempts=report.attempts,
        restarts=dict(report.restarts),
        started_at=started_at,
        finished_at=finished_at,
        first=first,
        collateral=tuple(end for end in report.ends if end is not first),
    )


def write_outcome(path: Path, outcome: NodeOutcome) -> None:
    """Replaces the node's ``outcome.json``. Where it cannot be written, the exit code tells."""
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
    bare = replace(shorter, first=None, detail=outcome.detail[:500])
    texts = (one.to_json() for one in (outcome, shorter, bare))
    fitting = (text for text in texts if len(text) <= protocol.TERMINATION_LIMIT_BYTES)
    return next(fitting, replace(bare, detail="").to_json())
