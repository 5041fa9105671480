"""Holds nodes for runs to come: finds a hold, waits until it takes runs, ends it."""

from __future__ import annotations

import contextlib
import getpass
import socket
from pathlib import Path

from launcher.api.choose_target import open_target
from launcher.api.listing import read_state
from launcher.api.stopping import stop_run
from launcher.contract import typed
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.hold import OWNER_FILE
from launcher.contract.states import OVER
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, list_runs, write_atomically
from launcher.targets.hold import Hold, is_hold

POLL_S = 0.05
COMMAND = ("-m", "launcher_hold")
"""The command of a hold without a job. It is never started."""


def write_job(name: str) -> str:
    """The text of a job file for a hold that nobody has given a job."""
    return f"name: {name}\ncommand: [{', '.join(COMMAND)}]\n"


def check_hold(root: Path, name: str, target: Target) -> None:
    """Raises ``InputError`` if no hold of that name can be made on a target."""
    if not target.traits.held_by:
        what = f"--on {target.name}: nodes are not held there so far"
        fix = "another --on; there each run starts its own nodes"
        raise InputError(what, fix)
    try:
        run = find_hold(root, name)
    except InputError:
        return
    what = f"--name {name}: that hold is there already ({run.run_id})"
    raise InputError(what, f"{typed.command('stop', name)}, or another --name")


def find_hold(root: Path, name: str) -> RunFolder:
    """The living hold of that name, or run id. Raises ``InputError``."""
    found: list[tuple[RunFolder, LaunchPlan]] = []
    for run in list_runs(root):
        with contextlib.suppress(InputError):
            plan = run.read_plan()
            if is_hold(plan) and name in (plan.job_name, run.run_id):
                found.append((run, plan))
    if not found:
        fix = typed.command("hold", "--name", name, "--nnodes", "N")
        raise InputError(f"no hold {name!r} in {root.absolute()}", fix)
    run, plan = found[-1]
    state, outcome = read_state(run, plan)
    if state in OVER:
        why = ": ".join(filter(None, (outcome.reason, outcome.detail))) if outcome else state
        fix = typed.command("hold", "--name", name, "--nnodes", str(len(plan.nodes)))
        raise InputError(f"the hold {name} has ended ({why})", fix)
    return run


def enter_hold(root: Path, name: str, target: Target, *, fresh: bool) -> Target:
    """The target of a new run that uses the nodes of a hold, on the hold's own ``target``.

    Raises ``InputError``.
    """
    run = find_hold(root, name)
    if (there := run.read_plan().target) != target.name:
        raise InputError(f"--in {name}: that hold is on {there}", f"--on {there}")
    hold = Hold(run, fresh=fresh)
    by = target.traits.held_by
    target = target if by == target.name else open_target(by, root)
    target.hold, target.there = hold, hold.there
    return target


def wait_ready(run: RunFolder, clock: Clock) -> None:
    """Blocks until all nodes take runs. Raises ``TargetError`` if the hold has ended."""
    hold = Hold(run)
    write_atomically(run.path / OWNER_FILE, f"{getpass.getuser()}@{socket.gethostname()}\n")
    while not hold.is_ready():
        if (outcome := run.read_outcome()) is not None:
            what = f"{run.run_id} has ended ({outcome.reason}): {outcome.detail}"
            raise TargetError(what, typed.command("logs", "-v", run.run_id))
        # Ended by the hold's end, or by the person.
        clock.sleep(POLL_S)


def release(root: Path, name: str, grace_s: float | None) -> str:
    """Ends a hold that nobody uses, and returns what was done. Raises ``InputError``."""
    run = find_hold(root, name)
    # Enter the hold, so that no run can.
    (hold := Hold(run)).enter(run.run_id)
    try:
        return stop_run(run, grace_s)
    finally:
        hold.leave()
