"""Tells a run in full: what its folder has, and for a run of others what their cluster has."""

from __future__ import annotations

import contextlib

from launcher.api.choose_target import open_target
from launcher.api.listing import GOES_ON, read_state
from launcher.contract.errors import TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.report import Postmortem, read_postmortem


def report_run(run: RunFolder, now: float) -> Postmortem:
    """``now`` is seconds since the epoch. Gives a run that ended unseen its outcome.

    Raises ``InputError`` for a folder without a plan.
    """
    plan = run.read_plan()
    if run.is_borrowed:
        # A user who may not read logs gets a report without them.
        with contextlib.suppress(TargetError):
            list(open_target(plan.target, run.path.parent).bring_output(run, plan, follow=False))
    state, outcome = read_state(run, plan)
    states = read_node_states(run, plan) if state in GOES_ON else {}
    return read_postmortem(run, plan, state, outcome, now, states)


def read_node_states(run: RunFolder, plan: LaunchPlan) -> dict[tuple[int, int], tuple[str, str]]:
    """Each node's state and the target's words for it now, by (node index, incarnation).

    Empty if the target is silent.
    """
    try:
        seen = open_target(plan.target, run.path.parent).observe(plan)
    except TargetError:
        return {}
    return {(n.node_index, n.incarnation): (n.state.value, n.detail) for n in seen.nodes}
