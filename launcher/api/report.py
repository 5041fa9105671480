"""Tells a run in full: what its folder has, and for a run of others what their cluster has."""

from __future__ import annotations

from pathlib import Path

from launcher.api.choose_target import open_target
from launcher.api.listing import read_state
from launcher.runs.folder import RunFolder
from launcher.runs.report import Postmortem, read_postmortem


def report_run(run: RunFolder, now: float, claim: Path | None = None) -> Postmortem:
    """``claim`` is where this machine sees the claim of a run that is only on its cluster.

    ``now`` is seconds since the epoch. Gives a run that ended unseen its outcome. Raises
    ``InputError`` for a folder without a plan.
    """
    plan = run.read_plan()
    if run.is_borrowed:
        open_target(plan.target, run.path.parent).bring_story(run, plan, claim)
    return read_postmortem(run, plan, *read_state(run, plan), now)
