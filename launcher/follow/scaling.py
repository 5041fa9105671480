"""Grows or shrinks a running elastic run, by asking the launcher that follows it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from launcher.api.open import KUBERNETES
from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.follow.target import Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, write_atomically

SCALE_REQUEST_FILE = protocol.SCALE_REQUEST
"""``{"nodes": N}`` in the run folder; the launcher that follows the run removes it."""
SCALE_FILE = "scale.json"
"""``{"nodes": N}`` in the run folder: the size last asked for; absent where nobody asked."""
ANSWER_LIMIT_S = 30.0


def scale_run(run: RunFolder, nodes: int, clock: Clock | None = None) -> str:
    """Asks for ``nodes`` nodes and waits until the request is taken up; returns what was said.

    Raises ``InputError`` where the run cannot have that many, ``TargetError`` where its launcher
    does not answer. Idempotent.
    """
    clock = clock or SystemClock()
    plan = run.read_plan()
    check_scale(plan, nodes)
    if plan.target == KUBERNETES and _goes_on_alone(run, plan):
        from launcher.targets.kubernetes.target import KubernetesTarget

        KubernetesTarget(run.path.parent).scale(plan, nodes)
        write_atomically(run.path / SCALE_FILE, json.dumps({"nodes": nodes}))
        return f"{run.run_id}: asked for {count_nodes(nodes)}"
    if plan.target == "hosts" and run.read_outcome() is None and run.launcher_pid() is None:
        from launcher.targets.hosts.target import HostsTarget

        text = json.dumps({"nodes": nodes})
        HostsTarget(run.path.parent).ask_launcher(plan, SCALE_REQUEST_FILE, text)
        return f"{run.run_id}: asked for {count_nodes(nodes)}"
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
    return f"{run.run_id}: asked for {count_nodes(nodes)}; launcher status {run.run_id} shows them"


def _goes_on_alone(run: RunFolder, plan: LaunchPlan) -> bool:
    from launcher.api.stopping import read_outcome_now

    return run.launcher_pid() is None and read_outcome_now(run, plan) is None


def check_scale(plan: LaunchPlan, nodes: int) -> None:
    """Raises ``InputError`` where a run of this plan cannot have ``nodes`` nodes."""
    low, high = plan.nodes[0].min_nodes, plan.nodes[0].max_nodes
    if plan.agent is None or not plan.is_elastic:
        raise InputError(
            f"{plan.run_id} has a fixed number of nodes, or runs under plain torchrun",
            "a job with nnodes: MIN:MAX and without engine: torchrun",
        )
    if not low <= nodes <= high:
        anew = f"other bounds need a new run (--resume {plan.run_id})"
        if plan.target == KUBERNETES:
            # There a job goes on from its own checkpoints, and its name is taken until it is gone.
            anew = f"for other bounds launcher stop {plan.run_id}, then run it with other --nnodes"
        raise InputError(
            f"{nodes} nodes asked for, but nnodes of {plan.run_id} is {low}:{high}",
            f"a number from {low} to {high}; {anew}",
        )


def take_request(run: RunFolder) -> int | None:
    """The number of nodes asked for since the last call; None where nobody asked."""
    path = run.path / SCALE_REQUEST_FILE
    nodes = _read_nodes(path)
    if nodes is not None:
        write_atomically(run.path / SCALE_FILE, json.dumps({"nodes": nodes}))
        path.unlink(missing_ok=True)
    return nodes


def read_withdrawn(run: RunFolder, plan: LaunchPlan) -> frozenset[int]:
    """Indices of the planned nodes that the run is not meant to have now: the highest ones."""
    nodes = _read_nodes(run.path / SCALE_FILE)
    return frozenset() if nodes is None else frozenset(range(nodes, len(plan.nodes)))


def without(observation: Observation, withdrawn: frozenset[int]) -> Observation:
    """The nodes that the run is meant to have."""
    nodes = tuple(node for node in observation.nodes if node.node_index not in withdrawn)
    return replace(observation, nodes=nodes)


def _read_nodes(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_text())["nodes"])
    return None


def count_nodes(nodes: int) -> str:
    """A number of nodes in words."""
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
