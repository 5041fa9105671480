"""Reads the outcomes that the nodes' agents wrote."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.node_outcome import NodeOutcome, parse_node_outcome
from launcher.contract.reasons import EXIT_CODE_OF_REASON, Reason
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import agent_ledger, clock_offsets, count_restarts, read_ledger


def read_node_outcome(run: RunFolder, node_index: int, incarnation: int) -> NodeOutcome | None:
    """None if the node still runs, or was killed before it could write."""
    path = run.node_dir(node_index, incarnation) / protocol.OUTCOME_FILE
    with contextlib.suppress(OSError):
        return parse_node_outcome(path.read_text())
    return None


def read_restarts(run: RunFolder) -> dict[str, int]:
    """Restarts of workers by cause, over all nodes and all their incarnations.

    From the ledgers, as a killed agent reports no outcome; from the outcome without a ledger.
    """
    total: Counter[str] = Counter()
    for node_index, incarnation in run.incarnations():
        events = read_ledger(agent_ledger(run, node_index, incarnation))
        outcome = read_node_outcome(run, node_index, incarnation)
        if events:
            total.update(count_restarts(events))
        elif outcome:
            total.update(outcome.restarts)
    return dict(sorted(total.items()))


def refine_reason(
    reason: Reason, detail: str, outcomes: Sequence[NodeOutcome], first_node: int | None = None
) -> tuple[Reason, str]:
    """Replaces a reason that was taken from an exit code by the nodes' own reason. Pure.

    Several reasons share exit code 1: the node of the first failure (``first_node``) knows which it
    was, or else the node that ended first.
    """
    code = int(EXIT_CODE_OF_REASON[reason])
    order = lambda o: (o.node_index != first_node, o.finished_at)  # noqa: E731
    same = sorted((o for o in outcomes if o.exit_code == code), key=order)
    told = next((o for o in same if o.reason is reason), None)
    if reason is Reason.TRAINING_FAILED and same:
        told = same[0]
    if told is None or told.detail == protocol.OTHERS_GO_ON:
        return reason, detail
    if told.reason is Reason.DISK_FULL:
        # It names the disk, which an exit code does not.
        return told.reason, f"node {told.node_index}: {told.detail}"
    return told.reason, detail or told.detail


def read_outcomes_of(run: RunFolder, plan: LaunchPlan) -> tuple[NodeOutcome, ...]:
    """Outcomes of the plan's incarnations, by the launcher's clock; killed ones left none."""
    offsets = clock_offsets(plan)
    found = (read_node_outcome(run, node.node_index, node.incarnation) for node in plan.nodes)
    return tuple(
        replace(told, finished_at=told.finished_at - offsets.get(told.node_index, 0.0))
        for told in found
        if told is not None
    )
