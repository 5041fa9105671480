"""Holds nodes for runs to come: finds a hold, waits until it takes runs, ends it."""

from __future__ import annotations

import getpass
import math
import socket
from pathlib import Path

from launcher.api.listing import read_state
from launcher.api.stopping import stop_run
from launcher.contract import typed
from launcher.contract.causes import OVER
from launcher.contract.errors import InputError, closest
from launcher.contract.hold import OWNER_FILE
from launcher.follow.target import Target
from launcher.runs.folder import RunFolder, list_runs, write_atomically
from launcher.targets.held.hold import Hold, in_hold

COMMAND = ("-m", "launcher_hold")
"""The command of a hold without a job. It is never started."""


JOB = f"name: hold\ncommand: [{', '.join(COMMAND)}]\n"
"""The text of a job file for a hold that nobody has given a job."""


def check_name(root: Path, name: str) -> None:
    """Raises ``InputError`` if a hold of that name is there already."""
    try:
        run = find_hold(root, name)
    except InputError:
        return
    what = f"--name {name}: that hold is there already ({run.run_id})"
    raise InputError(what, f"{typed.command('stop', name)}, or another --name")


def find_hold(root: Path, name: str) -> RunFolder:
    """The living hold of that name, or run id. Raises ``InputError``."""
    holds = [(run, run.read_plan()) for run in list_runs(root) if run.is_hold]
    named = [(run, plan) for run, plan in holds if name in (plan.job_name, run.run_id)]
    if not named:
        living = (plan.job_name for run, plan in holds if run.read_outcome() is None)
        near = closest(name, living)
        fix = typed.command("hold", "--name", name, "--nnodes", "N")
        fix = f"did you mean {near}? Else: {fix}" if near else fix
        raise InputError(f"no hold {name!r} in {root.absolute()}", fix)
    run, plan = named[-1]
    state, outcome = read_state(run, plan)
    if state in OVER:
        why = ": ".join(filter(None, (outcome.cause, outcome.detail))) if outcome else state
        fix = typed.command("hold", "--name", name, "--nnodes", str(len(plan.nodes)))
        raise InputError(f"the hold {name} has ended ({why})", fix)
    return run


def enter_hold(run: RunFolder, target: Target, *, fresh: bool) -> Target:
    """The target of a new run that uses the nodes of a hold, on the hold's own ``target``.

    Raises ``InputError``.
    """
    plan = run.read_plan()
    if (there := plan.target) != target.name:
        raise InputError(f"--in {plan.job_name}: that hold is on {there}", f"--on {there}")
    target = in_hold(run.path, target, fresh=fresh)
    target.there = Hold(run, fresh=fresh).there
    return target


def wait_ready(run: RunFolder) -> None:
    """Blocks until all nodes take runs. Raises ``TargetError`` if the hold has ended."""
    write_atomically(run.path / OWNER_FILE, f"{getpass.getuser()}@{socket.gethostname()}\n")
    Hold(run).wait_ready(math.inf)


def release(root: Path, name: str, grace_s: float | None) -> str:
    """Ends a hold that nobody uses, and returns what was done. Raises ``InputError``."""
    run = find_hold(root, name)
    # Enter the hold, so that no run can.
    (hold := Hold(run)).enter(run.run_id)
    try:
        return stop_run(run, grace_s)
    finally:
        hold.leave()
