"""Reports a run in full: from its folder, and for another user's run from the cluster."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from launcher.api.choose_target import target_of
from launcher.api.listing import GOES_ON, UNREADABLE, read_state
from launcher.contract.errors import InputError, TargetError
from launcher.contract.node_plan import AgentSettings
from launcher.plan.launch_plan import LaunchPlan, Resources
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from launcher.runs.report import Postmortem, read_postmortem


def report_run(run: RunFolder, now: float) -> Postmortem:
    """``now`` is seconds since the epoch. Records the outcome of a run that ended unseen.

    Of a folder without a plan of this version, reports what can be read.
    """
    try:
        plan = run.read_plan()
    except InputError as error:
        outcome = run.read_outcome()
        state = outcome.state if outcome else UNREADABLE
        report = read_postmortem(run, _stand_in(run, outcome), state, outcome, now, {})
        return replace(report, missing=(error.what,))
    if run.is_borrowed:
        # A user who may not read logs gets a report without them.
        with contextlib.suppress(TargetError):
            list(target_of(plan, run.path.parent).bring_output(run, plan, follow=False))
    state, outcome = read_state(run, plan)
    states = read_node_states(run, plan)[0] if state in GOES_ON else {}
    return read_postmortem(run, plan, state, outcome, now, states)


def _stand_in(run: RunFolder, outcome: Outcome | None) -> LaunchPlan:
    """A stand-in for the plan of a run that has none."""
    return LaunchPlan(
        run_id=run.run_id,
        job_name=outcome.job if outcome else "",
        target=(outcome.target if outcome else "") or "an unknown target",
        run_dir=str(run.path),
        checkpoint_dir="",
        stop_grace_s=0,
        agent=AgentSettings(),
        resources=Resources(accelerator="cpu", shm_bytes=0),
        nodes=(),
    )


def read_node_states(
    run: RunFolder, plan: LaunchPlan
) -> tuple[dict[tuple[int, int], tuple[str, str]], TargetError | None]:
    """Each node's state and the target's words for it now, by (node index, incarnation).

    And what did not answer; there are no states if that is the target itself.
    """
    try:
        observation, error = target_of(plan, run.path.parent).observe_reachable(plan)
    except TargetError as silent:
        return {}, silent
    states = {(n.node_index, n.incarnation): (n.state.value, n.detail) for n in observation.nodes}
    return states, error
