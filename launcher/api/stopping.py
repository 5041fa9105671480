"""Ends a run from any terminal: asks the launcher that follows it, or does it in its place;
``--keep`` leaves its job suspended."""

from __future__ import annotations

import contextlib
import os
import signal

from launcher.agent import disk
from launcher.api.choose_target import target_of
from launcher.contract import protocol, typed
from launcher.contract.causes import Cause, RunState
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import InputError, TargetError
from launcher.contract.process_stat import is_stopped
from launcher.contract.waits import wait_until
from launcher.follow.loop import fold, is_out_of_sight, write_outcome
from launcher.follow.requests import forget_stop, is_stop_requested, is_to_be_kept, request_stop
from launcher.follow.target import Suspension, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome

MARGIN_S = 30.0
"""Seconds that a launcher may need beyond the grace: to collect logs and remove containers."""
STOPPED_LIMIT_S = 1.0
"""A launcher stopped (Ctrl-Z) for longer will not answer; before that, a shell may continue it."""


def stop_run(
    run: RunFolder, grace_s: float | None, clock: Clock | None = None, *, keep: bool = False
) -> str:
    """Ends a run and removes what is left of it; returns what was done. Idempotent.

    ``keep`` leaves the job's object on its cluster, suspended. Raises ``InputError`` for a run on
    no cluster.
    """
    clock = clock or SystemClock()
    plan = run.read_plan()
    target = target_of(plan, run.path.parent)
    kept = target.suspension(plan) if keep else None
    if keep and kept is None:
        raise InputError(f"--keep: {run.run_id} is on no cluster", "leave --keep out")
    grace_s = plan.stop_grace_s if grace_s is None else grace_s
    notes: list[str] = []
    if (living := run.launcher_pid()) is not None and read_outcome_now(run, plan) is None:
        grace = (grace_s, plan.stop_grace_s)
        if outcome := _ask_launcher(run, target, living, grace, clock, notes, keep=keep):
            ended = f"{run.run_id}: {outcome.state}, {outcome.cause}"
            return f"{ended}; {_describe(kept, outcome)}" if kept else ended
    elif not is_stop_requested(run):
        # A run that ended without its launcher was not stopped. An error here shows again below.
        with contextlib.suppress(TargetError):
            fold(run, target, clock.wall())
    if is_out_of_sight(run, target) and read_outcome_now(run, plan) is None:
        return _ask_elsewhere(run, plan, clock, grace_s)
    if kept:
        if not _has_ended(run.read_outcome()):
            kept.end(target.notes, keep=True)
            request_stop(run, keep=True)
    else:
        if run.read_outcome() is None:
            # Another terminal that follows the run may find its end first, and reads this.
            with contextlib.suppress(OSError):
                request_stop(run, keep=False)
        target.stop(run.run_id, grace_s)
    outcome = read_outcome_now(run, plan)
    if outcome is None:
        outcome = write_outcome(run, plan, Ending(cause=Cause.STOP_REQUESTED), clock.wall())
    left = _describe(kept, outcome) if kept else "nothing of it runs any more"
    return "\n".join(
        (f"{run.run_id}: {outcome.state}, {outcome.cause}; {left}", *notes, *target.notes)
    )


def _ask_launcher(
    run: RunFolder,
    target: Target,
    living: int,
    grace: tuple[float, int],
    clock: Clock,
    notes: list[str],
    *,
    keep: bool,
) -> Outcome | None:
    """Has the launcher with the pid ``living`` end its run; None if it gives no outcome.

    ``grace`` are the seconds that the caller gives, and the job's own. Adds to ``notes``.
    """
    try:
        request_stop(run, keep=keep)
    except OSError as error:
        if keep or not disk.is_full(error):
            raise
        os.kill(living, signal.SIGTERM)  # A full disk takes no request.
    asked_at, (grace_s, own_s) = clock.monotonic(), grace
    is_shorter = grace_s < own_s
    while clock.monotonic() < asked_at + grace_s + MARGIN_S:
        # In this order: it records the outcome, and then it ends.
        pid = run.launcher_pid()
        if outcome := run.read_outcome():
            return outcome
        if pid is None:
            break
        if is_stopped(pid):
            clock.sleep(STOPPED_LIMIT_S)
            if is_stopped(pid):
                notes.append(f"its launcher (pid {pid}) is stopped; end it: kill -9 {pid}")
                break
        if is_shorter and not keep and clock.monotonic() > asked_at + grace_s:
            target.stop(run.run_id, 0)  # The launcher gives the job's own grace.
            is_shorter = False
        clock.sleep(0.1)
    return None


def _ask_elsewhere(run: RunFolder, plan: LaunchPlan, clock: Clock, grace_s: float) -> str:
    """Asks a launcher on another machine, through the run's folder.

    Raises ``TargetError`` if it does not answer.
    """
    request_stop(run, keep=False)
    wait_until(run.read_outcome, max(grace_s, plan.stop_grace_s) + MARGIN_S, clock=clock)
    if outcome := run.read_outcome():
        return f"{run.run_id}: {outcome.state}, {outcome.cause}"
    raise TargetError(
        f"STILL RUNNING: {run.run_id}: its launcher, on another machine, does not answer",
        f"there: {typed.command('stop', run.run_id)}",
    )


def _has_ended(outcome: Outcome | None) -> bool:
    """Whether a run came to its own end, so that nothing of it can be resumed."""
    return outcome is not None and outcome.state != RunState.STOPPED.value


def _describe(kept: Suspension, outcome: Outcome) -> str:
    if _has_ended(outcome):
        stop = typed.command("stop", outcome.run_id)
        return f"it had ended before, and is not resumed; {stop} removes what is left"
    return f"its object is kept; resume it: {kept.render_resuming()}"


def read_outcome_now(run: RunFolder, plan: LaunchPlan) -> Outcome | None:
    """The run's outcome; None also if its job was kept and has been resumed."""
    return read_kept(run, plan)[0]


def read_kept(run: RunFolder, plan: LaunchPlan) -> tuple[Outcome | None, bool]:
    """As ``read_outcome_now``, and whether the job of the stopped run is kept, suspended.

    If the job was resumed, sets the outcome of the stop aside: the run goes on.
    """
    outcome = run.read_outcome()
    if outcome is None or not is_to_be_kept(run):
        return outcome, False
    kept = target_of(plan, run.path.parent).suspension(plan)
    is_suspended = kept.is_suspended() if kept else None
    if is_suspended is not False:
        return outcome, is_suspended is True
    forget_stop(run)
    path = run.path / protocol.OUTCOME_FILE
    path.replace(path.with_name("outcome-of-stop.json"))
    return None, False
