"""A profile of a run that goes on: files of all its ranks, taken by their agents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.api.choose_target import target_of
from launcher.api.listing import read_state
from launcher.contract import typed
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError
from launcher.contract.reports import look
from launcher.contract.reports.look import LookRequest
from launcher.follow.look import present_nodes
from launcher.runs.folder import RunFolder
from launcher.targets.held.hold import refuse_hold

MARGIN_S = 25.0
"""Seconds to start and write a profile, beside its own seconds."""


@dataclass(frozen=True, kw_only=True)
class RunProfile:
    """The file of each rank, why a rank has none, and why a node did not answer."""

    files: dict[int, Path] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)


def take_profile(run: RunFolder, clock: Clock, *, steps: int, seconds: float) -> RunProfile:
    """Has all ranks profiled: ``steps`` steps, or ``seconds`` of a script that has none.

    Blocks for ``seconds`` and ``MARGIN_S`` at most. Raises ``InputError`` for a run that has ended,
    and for one without agents.
    """
    if steps < 1:
        raise InputError(f"--steps {steps}: a profile has a step at least", "--steps 5")
    plan = run.read_plan()
    _, outcome = read_state(run, plan)
    if outcome is not None:
        what = f"{run.run_id} has ended ({outcome.cause}), and has no workers to profile"
        raise InputError(what, typed.command("run", "--again", run.run_id))
    if plan.agent is None:
        what = f"{run.run_id} runs under plain torchrun, which has no agent that asks workers"
        raise InputError(what, "on each node: py-spy record --pid PID (pip install py-spy)")
    refuse_hold(run, plan, "profile")
    id = f"profile-{clock.wall():.3f}-{os.getpid()}"
    request = LookRequest(id=id, steps=steps, seconds=seconds)
    target = target_of(plan, run.path.parent)
    silent = target.look_at_workers(run, plan, request, seconds + MARGIN_S, clock)
    profiles = RunProfile(silent=silent)
    for node_dir in present_nodes(run).values():
        folder = look.look_dir(node_dir, id)
        recorded = look.read_look(folder)
        for worker in recorded.ranks if recorded else ():
            names = (look.TRACE.format(rank=worker.rank), look.SPEEDSCOPE.format(rank=worker.rank))
            paths = [folder / name for name in names]
            there = [path for path in paths if path.exists()]
            if there:
                profiles.files[worker.rank] = there[0]
            else:
                profiles.missing[worker.rank] = worker.no_stacks or "its node has sent no file"
    return profiles
