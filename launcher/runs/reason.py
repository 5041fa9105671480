"""Why a run ended: the one place that decides it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import ExitCode, name_ending
from launcher.contract.node_outcome import NodeOutcome
from launcher.contract.worker_end import WorkerEnd
from launcher.runs.outcome import Outcome

_NO_MODULE = re.compile(r"/\S.*: (No module named \S+|Error while finding module .+)")
"""What ``python -m`` prints if it cannot start the module."""


_OF_WORKERS = (Cause.TRAINING_FAILED, Cause.RESTARTS_EXHAUSTED, Cause.BAD_INPUT)
"""Reasons of runs that a worker has ended."""


def decide_reason(seen: Outcome, nodes: Sequence[NodeOutcome], first: WorkerEnd | None) -> Outcome:
    """How a run ended, from all that is known of it.

    ``seen`` is what its driver saw, ``nodes`` is what the agents left, ``first`` is the worker that
    failed first. Each source knows more than the one before.
    """
    end = _by_nodes(seen, nodes, first)
    if first is None or end.reason not in _OF_WORKERS:
        return end
    wrong = _find_bad_input(first)
    return replace(end, reason=Cause.BAD_INPUT, detail=wrong) if wrong else end


def _by_nodes(seen: Outcome, nodes: Sequence[NodeOutcome], first: WorkerEnd | None) -> Outcome:
    """Several reasons share exit code 1: the node where ``first`` ran knows the right one.

    Without such a node, takes the reason of the node that ended first.
    """
    first_node = first.node_index if first else None
    order = lambda node: (node.node_index != first_node, node.finished_at)  # noqa: E731
    code = seen.reason.exit_code
    same = sorted((node for node in nodes if node.exit_code == code), key=order)
    if seen.reason is not Cause.TRAINING_FAILED:
        same = [node for node in same if node.reason is seen.reason]
    if not same or same[0].detail == protocol.OTHERS_GO_ON:
        return seen
    told = same[0]
    if told.reason is Cause.DISK_FULL:
        # The node names the disk, which an exit code does not.
        return replace(seen, detail=f"node {told.node_index}: {told.detail}")
    return replace(seen, reason=told.reason, detail=seen.detail or told.detail)


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
