"""Why a run ended: judged here alone, from what its target, its nodes and its workers say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM, Cause, cause_of_exit_code
from launcher.contract.ending import Ending, NodeOutcome
from launcher.contract.errors import ExitCode, name_ending, name_exit_code
from launcher.contract.states import NodeState
from launcher.contract.worker_end import WorkerEnd
from launcher.follow.target import NodeObservation
from launcher.job.quantity import render_bytes
from launcher.plan.launch_plan import LaunchPlan

_NO_MODULE = re.compile(r"/\S.*: (No module named \S+|Error while finding module .+)")
"""What ``python -m`` prints if it cannot start the module."""
_OF_WORKERS = (Cause.TRAINING_FAILED, Cause.RESTARTS_EXHAUSTED, Cause.BAD_INPUT)
"""Causes of runs that a worker has ended."""


# -- by a node, as its target reports it -----------------------------------------------------------


def is_lost(node: NodeObservation) -> bool:
    """Whether a node was taken from outside: killed by a signal, or gone without a word."""
    return node.state is NodeState.MISSING or node.code > RETRY_FROM


def is_permanent(node: NodeObservation) -> bool:
    """Whether its exit code says that another start would end alike."""
    return 0 < node.code < RETRY_FROM


def judge_agent(node: NodeObservation) -> Ending:
    """Why a run ends that cannot go on without this node; an agent chose its exit code."""
    if node.out_of_memory:
        return Ending(cause=Cause.OUT_OF_MEMORY, detail=describe_agent(node))
    if is_permanent(node):
        # The node's own report names rank and cause, which says more than its exit code.
        return Ending(cause=cause_of_exit_code(node.code), detail=node.detail)
    # A signal's code does not say why.
    is_own = node.code >= ExitCode.RENDEZVOUS_UNREACHABLE and node.code in set(ExitCode)
    cause = cause_of_exit_code(node.code) if is_own else Cause.NODE_LOST
    return Ending(cause=cause, detail=describe_agent(node))


def judge_torchrun(plan: LaunchPlan, node: NodeObservation) -> Ending:
    """Why a run under torchrun, or of a static group, ends with this node."""
    if node.out_of_memory:
        return Ending(cause=Cause.OUT_OF_MEMORY, detail=describe(node))
    if is_lost(node):
        cause = Cause.NODE_LOST if plan.agent is None else judge_agent(node).cause
        return Ending(cause=cause, detail=describe(node))
    cause = Cause.RESTARTS_EXHAUSTED if plan.max_restarts > 0 else Cause.TRAINING_FAILED
    # The report names the rank, which says more than a node's exit code.
    return Ending(cause=cause, detail=node.detail)


def describe_agent(node: NodeObservation) -> str:
    """One agent's ending in words, with the meaning of its exit code."""
    told = describe(node)
    if node.state is NodeState.MISSING or node.out_of_memory or node.detail:
        return told
    return told if node.code < RETRY_FROM else f"{told} ({cause_of_exit_code(node.code)})"


def describe(node: NodeObservation) -> str:
    """One node's ending in words."""
    if node.is_alive:
        return f"node {node.node_index} still lives though the run is over: it may be frozen"
    if node.state is NodeState.MISSING:
        return f"node {node.node_index} is gone" + (f": {node.detail}" if node.detail else "")
    why = "out of memory" if node.out_of_memory else node.detail
    told = f"node {node.node_index} ended with exit code {name_exit_code(node.exit_code)}"
    return f"{told} ({why})" if why else told


# -- by all that is known --------------------------------------------------------------------------


def judge_run(
    seen: Ending,
    nodes: Sequence[NodeOutcome],
    first: WorkerEnd | None,
    memory_bytes: int | None = None,
) -> Ending:
    """Why a run ended, from all that is known of it.

    ``seen`` is what its driver saw, ``nodes`` is what the agents left, ``first`` is the worker that
    failed first. Each source knows more than the one before. ``memory_bytes`` is a node's limit.
    """
    end = _by_nodes(seen, nodes, first)
    if first and end.cause in _OF_WORKERS and (wrong := _find_bad_input(first)):
        end = replace(end, cause=Cause.BAD_INPUT, detail=wrong)
    if memory_bytes and Cause.OUT_OF_MEMORY in (end.cause, first.cause if first else None):
        fix = f"--set resources.memory={render_bytes(2 * memory_bytes)}"
        told = f"the limit is {render_bytes(memory_bytes)}; fix: {fix}"
        return replace(end, detail=f"{told}; {end.detail}" if end.detail else told)
    return end


def _by_nodes(seen: Ending, nodes: Sequence[NodeOutcome], first: WorkerEnd | None) -> Ending:
    """Several causes share exit code 1: the node where ``first`` ran knows the right one.

    Without such a node, takes the cause of the node that ended first.
    """
    first_node = first.node_index if first else None

    def order(node: NodeOutcome) -> tuple[bool, float]:
        return node.node_index != first_node, node.finished_at

    same = sorted((node for node in nodes if node.exit_code == seen.cause.exit_code), key=order)
    if seen.cause is not Cause.TRAINING_FAILED:
        same = [node for node in same if node.reason is seen.cause]
    if not same or same[0].detail == protocol.OTHERS_GO_ON:
        return seen
    told = same[0]
    if told.reason is Cause.DISK_FULL:
        # The node names the disk, which an exit code does not.
        return replace(seen, detail=f"node {told.node_index}: {told.detail}")
    return replace(seen, cause=told.reason, detail=seen.detail or told.detail)


def _find_bad_input(first: WorkerEnd) -> str:
    """Describes input that the user has to correct; empty if the worker reports none.

    Python ends with 2 for a missing script, as argparse does for bad arguments. For a missing
    module it ends with 1, and one line on stderr.
    """
    last = first.last_words
    if missing := _NO_MODULE.fullmatch(last):
        return f"rank {first.rank}: {missing[1]}"
    is_bad = first.exit_code == ExitCode.BAD_INPUT
    return f"rank {first.rank}: {last or name_ending(first.exit_code)}" if is_bad else ""
