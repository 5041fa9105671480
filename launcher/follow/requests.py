"""Requests to the launcher that follows a run, to stop or to scale: files in the run folder; and to
which numbers of nodes a run can be scaled.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError
from launcher.contract.records import read_object
from launcher.follow.target import Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, write_atomically

KEEP = "keep\n"
"""The text of a request to stop the run and keep what is needed to resume it."""
SCALE_FILE = "scale.json"
"""``{"nodes": N, "returned": M}`` in the run folder: the size last asked for, and how many nodes
have come back by scaling; absent if no size was asked for."""


def request_stop(run: RunFolder, *, keep: bool) -> None:
    """Asks the launcher to end the run. The launcher leaves the request in place."""
    text = KEEP if keep else "stop requested by launcher stop\n"
    write_atomically(run.path / protocol.STOP_RUN_FILE, text)


def is_stop_requested(run: RunFolder) -> bool:
    """Whether there is a request to stop."""
    return (run.path / protocol.STOP_RUN_FILE).exists()


def is_to_be_kept(run: RunFolder) -> bool:
    """Whether the run was asked to stop and be kept."""
    with contextlib.suppress(OSError):
        return (run.path / protocol.STOP_RUN_FILE).read_text() == KEEP
    return False


def forget_stop(run: RunFolder) -> None:
    """Withdraws the request to stop."""
    (run.path / protocol.STOP_RUN_FILE).unlink(missing_ok=True)


def request_scale(run: RunFolder, nodes: int) -> Path:
    """Asks for ``nodes`` nodes. Returns the request's file, which the launcher removes."""
    path = run.path / protocol.SCALE_REQUEST
    write_atomically(path, render_scale(nodes))
    return path


def render_scale(nodes: int) -> str:
    """The text of a request to scale."""
    return json.dumps({"nodes": nodes})


def take_scale_request(run: RunFolder) -> int | None:
    """The number of nodes asked for since the last call; None if none was asked for."""
    path = run.path / protocol.SCALE_REQUEST
    nodes = _read_number(path, "nodes")
    if nodes is not None:
        write_size(run, nodes)
        path.unlink(missing_ok=True)
    return nodes


def write_size(run: RunFolder, nodes: int) -> None:
    """Remembers the size that the run is meant to have."""
    before = _read_number(run.path / SCALE_FILE, "nodes")
    back = 0 if before is None else max(0, nodes - before)
    record = {"nodes": nodes, "returned": count_returned(run) + back}
    write_atomically(run.path / SCALE_FILE, json.dumps(record))


def count_returned(run: RunFolder) -> int:
    """How many nodes have come back by scaling. Each took a new incarnation, but was not lost."""
    return _read_number(run.path / SCALE_FILE, "returned") or 0


def read_withdrawn(run: RunFolder, plan: LaunchPlan) -> frozenset[int]:
    """Indices of the planned nodes that scaling has removed for now: the highest ones."""
    nodes = _read_number(run.path / SCALE_FILE, "nodes")
    return frozenset() if nodes is None else frozenset(range(nodes, len(plan.nodes)))


def without(observation: Observation, withdrawn: frozenset[int]) -> Observation:
    """The observation without the ``withdrawn`` nodes."""
    nodes = tuple(node for node in observation.nodes if node.node_index not in withdrawn)
    return replace(observation, nodes=nodes)


def _read_number(path: Path, key: str) -> int | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(read_object(path)[key])
    return None


def check_scale(plan: LaunchPlan, nodes: int, *, own_checkpoints: bool = False) -> None:
    """Raises ``InputError`` if a run of this plan cannot have ``nodes`` nodes."""
    if plan.own is not None and plan.own.keeps_nodes:
        raise InputError(f"{plan.run_id} keeps its nodes", plan.own.keeps_nodes)
    low, high = plan.min_nodes, plan.max_nodes
    if plan.agent is None or not plan.is_elastic:
        raise InputError(
            f"{plan.run_id} has a fixed number of nodes, or runs under plain torchrun",
            "a job with nnodes: MIN:MAX and without engine: torchrun",
        )
    if not low <= nodes <= high:
        anew = f"other bounds need a new run (--resume {plan.run_id})"
        if own_checkpoints:
            # The job's name is taken until it is gone.
            stop = typed.command("stop", plan.run_id)
            anew = f"for other bounds {stop}, then run it with other --nnodes"
        raise InputError(
            f"{count_nodes(nodes)} asked for, but nnodes of {plan.run_id} is {low}:{high}",
            f"a number from {low} to {high}; {anew}",
        )


def count_nodes(nodes: int) -> str:
    """A number of nodes in words."""
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
