"""Changes the nodes of an elastic run that goes on: more, fewer, or one that is started by hand."""

from __future__ import annotations

from dataclasses import replace

from launcher.api.choose_target import target_of
from launcher.api.stopping import read_outcome_now
from launcher.contract import typed
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.node_plan import Elastic, NodePlan
from launcher.follow.requests import (
    check_scale,
    count_nodes,
    read_withdrawn,
    request_scale,
    without,
)
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nodes import plan_node_like
from launcher.runs.folder import RunFolder
from launcher.targets.agent_files import render_agent_files, write_agent_files

ANSWER_LIMIT_S = 30.0


def join_run(run: RunFolder) -> tuple[LaunchPlan, int]:
    """The run's plan with one more node, and that node's index, which no other node gets.

    Writes the files of the node's agent into the node's folder. Raises ``InputError`` if the run
    cannot take one more node.
    """
    plan = run.read_plan()
    if plan.agent is None or not plan.is_elastic:
        raise InputError(
            f"{run.run_id} has a fixed number of nodes, or runs under plain torchrun",
            "a job with nnodes: MIN:MAX and without engine: torchrun",
        )
    if run.read_outcome() is not None or run.launcher_pid() is None:
        raise _has_ended(run)
    _check_room(run, plan)
    index = _take_index(run, plan)
    node = plan_joining_node(plan, index)
    joined = replace(plan, nodes=(*plan.nodes, node))
    write_agent_files(render_agent_files(joined, (node,)))
    return joined, index


def _check_room(run: RunFolder, plan: LaunchPlan) -> None:
    """Raises ``InputError`` if the run has as many nodes as it may have."""
    planned = {node.node_index for node in plan.nodes}
    by_hand = sorted({index for index, _ in run.incarnations()} - planned)
    nodes = (*plan.nodes, *(plan_joining_node(plan, index) for index in by_hand))
    seen = target_of(plan, run.path.parent).observe(replace(plan, nodes=nodes))
    there = sum(node.is_alive for node in without(seen, read_withdrawn(run, plan)).nodes)
    if there >= (most := plan.max_nodes):
        raise InputError(
            f"{run.run_id} has {count_nodes(there)}, and its nnodes allows {most}",
            f"{typed.command('status', run.run_id)} shows them",
        )


def plan_joining_node(plan: LaunchPlan, index: int) -> NodePlan:
    """A node like the plan's last one, under an index of its own; it serves no store.

    On CPU only: accelerators are given out when the run is planned.
    """
    last = plan.nodes[-1]
    assert isinstance(last.rendezvous, Elastic)
    if last.device_ids:
        raise InputError(
            f"{plan.run_id} gave each GPU of this machine to one of its nodes",
            f"{typed.command('scale', plan.run_id, 'N')}, for nodes that were planned",
        )
    return plan_node_like(last, index, f"{plan.run_id}-{index}")


def _take_index(run: RunFolder, plan: LaunchPlan) -> int:
    """Takes the next free index by making its folder."""
    taken = {node.node_index for node in plan.nodes} | {index for index, _ in run.incarnations()}
    index = max(taken) + 1
    while True:
        try:
            run.node_dir(index, 0).mkdir(parents=True)
            return index
        except FileExistsError:
            index += 1


def scale_run(run: RunFolder, nodes: int, clock: Clock | None = None) -> str:
    """Asks for ``nodes`` nodes and waits until the request is taken up; returns what was said.

    Raises ``InputError`` if the run cannot have that many, ``TargetError`` if its launcher does
    not answer. Idempotent.
    """
    clock = clock or SystemClock()
    plan = run.read_plan()
    target = target_of(plan, run.path.parent)
    check_scale(plan, nodes, own_checkpoints=bool(target.traits.own_checkpoints))
    is_over = read_outcome_now(run, plan) is not None
    asked = f"{run.run_id}: asked for {count_nodes(nodes)}"
    if not is_over and run.launcher_pid() is None and target.scale(run, plan, nodes):
        return asked
    if is_over or run.launcher_pid() is None:
        raise _has_ended(run)
    request = request_scale(run, nodes)
    deadline = clock.monotonic() + ANSWER_LIMIT_S
    while request.exists():
        if clock.monotonic() > deadline:
            raise TargetError(
                f"the launcher of {run.run_id} has not answered for {ANSWER_LIMIT_S:g} s",
                typed.command("status", run.run_id),
            )
        clock.sleep(0.05)
    return f"{asked}; {typed.command('status', run.run_id)} shows them"


def _has_ended(run: RunFolder) -> InputError:
    what = f"{run.run_id} has ended, or no launcher follows it"
    return InputError(what, f"{typed.command('ps')} lists the runs that go on")
