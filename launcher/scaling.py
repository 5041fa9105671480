"""Grows or shrinks a running elastic run, by asking the launcher that follows it."""

from __future__ import annotations

import contextlib
import json

from launcher.clock import Clock, SystemClock
from launcher.errors import InputError, TargetError
from launcher.plan import LaunchPlan
from launcher.runs import RunFolder, write_atomically

SCALE_REQUEST_FILE = "scale-request"
"""``{"nodes": N}`` in the run folder; the launcher that follows the run removes it."""
ANSWER_LIMIT_S = 30.0


def scale_run(run: RunFolder, nodes: int, clock: Clock | None = None) -> str:
    """Asks for ``nodes`` nodes and waits until the request is taken up; returns what was said.

    Raises ``InputError`` where the run cannot have that many, ``TargetError`` where its launcher
    does not answer. Idempotent.
    """
    clock = clock or SystemClock()
    check_scale(run.read_plan(), nodes)
    if run.read_outcome() is not None or run.launcher_pid() is None:
        raise InputError(
            f"{run.run_id} has ended, or nobody follows it", "launcher ps lists the runs that go on"
        )
    request = run.path / SCALE_REQUEST_FILE
    write_atomically(request, json.dumps({"nodes": nodes}))
    deadline = clock.monotonic() + ANSWER_LIMIT_S
    while request.exists():
        if clock.monotonic() > deadline:
            raise TargetError(
                f"the launcher of {run.run_id} has not answered for {ANSWER_LIMIT_S:g} s",
                f"launcher status {run.run_id}",
            )
        clock.sleep(0.05)
    return f"{run.run_id}: {nodes} nodes asked for; launcher report {run.run_id} tells the world"


def check_scale(plan: LaunchPlan, nodes: int) -> None:
    """Raises ``InputError`` where a run of this plan cannot have ``nodes`` nodes."""
    low, high = plan.nodes[0].min_nodes, plan.nodes[0].max_nodes
    if plan.agent is None or not plan.is_elastic:
        raise InputError(
            f"{plan.run_id} has a fixed number of nodes, or runs under plain torchrun",
            "a job with nnodes: MIN:MAX and without engine: torchrun",
        )
    if not low <= nodes <= high:
        raise InputError(
            f"{nodes} nodes asked for, but nnodes of {plan.run_id} is {low}:{high}",
            f"a number from {low} to {high}; other bounds need a new run (--resume {plan.run_id})",
        )


def take_request(run: RunFolder) -> int | None:
    """The number of nodes asked for since the last call; None where nobody asked."""
    path = run.path / SCALE_REQUEST_FILE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        nodes = int(json.loads(path.read_text())["nodes"])
        path.unlink()
        return nodes
    return None
