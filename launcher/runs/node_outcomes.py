"""Reads the outcomes that the nodes' agents wrote."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.ending import NodeOutcome, parse_node_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.heals import Heal, find_heals
from launcher.runs.ledger import (
    LedgerEvent,
    agent_ledger,
    by_launchers_clock,
    clock_offsets,
    count_restarts,
    read_ledger,
)


def read_node_outcome(run: RunFolder, node_index: int, incarnation: int) -> NodeOutcome | None:
    """None if the node still runs, or was killed before it could write."""
    path = run.node_dir(node_index, incarnation) / protocol.OUTCOME_FILE
    with contextlib.suppress(OSError):
        return parse_node_outcome(path.read_text())
    return None


def read_restarts(run: RunFolder) -> dict[str, int]:
    """Restarts of workers by cause, over all nodes and all their incarnations.

    Read from each ledger, as a killed agent writes no outcome; without a ledger, from the outcome.
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


def read_heals(run: RunFolder, plan: LaunchPlan) -> tuple[Heal, ...]:
    """Heals and joins, oldest first, by the launcher's clock."""
    return find_heals(by_launchers_clock(read_agents(run), clock_offsets(plan)))


def read_agents(run: RunFolder) -> tuple[LedgerEvent, ...]:
    """The events of all agents, one agent after the other."""
    ledgers = (read_ledger(agent_ledger(run, *node)) for node in run.incarnations())
    return tuple(event for events in ledgers for event in events)


def read_outcomes_of(run: RunFolder, plan: LaunchPlan) -> tuple[NodeOutcome, ...]:
    """Outcomes of the plan's incarnations, by the launcher's clock; killed ones left none."""
    offsets = clock_offsets(plan)
    found = (read_node_outcome(run, node.node_index, node.incarnation) for node in plan.nodes)
    return tuple(
        replace(told, finished_at=told.finished_at - offsets.get(told.node_index, 0.0))
        for told in found
        if told is not None
    )
