"""Ends a run from any terminal: asks the launcher that follows it, or does it in its place."""

from __future__ import annotations

import contextlib

from launcher.api.open import KUBERNETES, open_target
from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.reasons import Reason
from launcher.follow.loop import STOP_RUN_FILE, write_outcome
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, write_atomically
from launcher.runs.outcome import Outcome
from launcher.targets.proc import is_stopped

KEEP = "keep\n"
"""What the request says where a cluster shall keep the job's object."""
MARGIN_S = 30.0
"""What a launcher may need beyond the grace: collecting logs, removing containers."""
STOPPED_LIMIT_S = 1.0
"""A launcher that a signal has stopped answers nobody; one that a shell continues is not."""


def stop_run(
    run: RunFolder, grace_s: float | None, clock: Clock | None = None, *, keep: bool = False
) -> str:
    """Ends a run and removes what is left of it; returns what was done. Idempotent.

    ``keep`` leaves the job's object on its cluster, suspended. Raises ``InputError`` for a run
    that is on none.
    """
    clock = clock or SystemClock()
    plan = run.read_plan()
    if keep and plan.target != KUBERNETES:
        raise InputError(f"--keep: {run.run_id} is on no cluster", "leave --keep out")
    grace_s = plan.stop_grace_s if grace_s is None else grace_s
    notes: list[str] = []
    if run.launcher_pid() is not None and read_outcome_now(run, plan) is None:
        said = KEEP if keep else "stop requested by launcher stop\n"
        write_atomically(run.path / STOP_RUN_FILE, said)
        deadline = clock.monotonic() + grace_s + MARGIN_S
        while (pid := run.launcher_pid()) is not None and clock.monotonic() < deadline:
            if outcome := run.read_outcome():
                told = f"{run.run_id}: {outcome.state}, {outcome.reason}"
                return f"{told}; {_resuming(run, plan)}" if keep else told
            if is_stopped(pid):
                clock.sleep(STOPPED_LIMIT_S)
                if is_stopped(pid):
                    notes.append(f"its launcher (pid {pid}) is stopped; end it: kill -9 {pid}")
                    break
            clock.sleep(0.1)
    target = open_target(plan.target, run.path.parent)
    if plan.target == KUBERNETES:
        _end_on_cluster(target, plan, grace_s, keep=keep)
    else:
        target.stop(run.run_id, grace_s)
    if keep:
        write_atomically(run.path / STOP_RUN_FILE, KEEP)
    outcome = read_outcome_now(run, plan)
    if outcome is None:
        outcome = write_outcome(run, plan, Reason.STOP_REQUESTED, "", clock.wall())
    left = _resuming(run, plan) if keep else "nothing of it runs any more"
    return "\n".join(
        (f"{run.run_id}: {outcome.state}, {outcome.reason}; {left}", *notes, *target.notes)
    )


def _end_on_cluster(target: Target, plan: LaunchPlan, grace_s: float, *, keep: bool) -> None:
    """Raises ``TargetError`` with the command to type where the job runs on."""
    from launcher.targets.kubernetes.target import KubernetesTarget

    assert isinstance(target, KubernetesTarget), "target and plan belong together"
    try:
        target.collect(plan)
    except TargetError as error:
        # Who may not see the pods may end the job all the same.
        target.notes.append(f"the last of its logs is left there: {error.what}")
    try:
        if keep:
            target.suspend(plan)
        else:
            target.remove(plan)
    except TargetError as error:
        end = None
        with contextlib.suppress(TargetError):
            end = target.read_end(plan)
        what = error.what if end else f"STILL RUNNING: {plan.run_id}: {error.what}"
        raise TargetError(what, target.render_by_hand(plan, keep=keep)) from error
    if not keep:
        target.wait_gone(plan, grace_s)


def _resuming(run: RunFolder, plan: LaunchPlan) -> str:
    from launcher.targets.kubernetes.target import KubernetesTarget

    return f"its object is kept; resume it: {KubernetesTarget(run.path.parent).resuming(plan)}"


def read_outcome_now(run: RunFolder, plan: LaunchPlan) -> Outcome | None:
    """The run's outcome; None also where its job was kept, and somebody has resumed it.

    The outcome of the stop is set aside then: the run goes on.
    """
    outcome = run.read_outcome()
    if outcome is None or plan.target != KUBERNETES or not _was_kept(run):
        return outcome
    from launcher.targets.kubernetes.pod_states import is_suspended
    from launcher.targets.kubernetes.target import KubernetesTarget

    with contextlib.suppress(TargetError):
        item = KubernetesTarget(run.path.parent).read_job(plan)
        if item is not None and not is_suspended(item):
            (run.path / STOP_RUN_FILE).unlink(missing_ok=True)
            path = run.path / protocol.OUTCOME_FILE
            path.replace(path.with_name("outcome-of-stop.json"))
            return None
    return outcome


def _was_kept(run: RunFolder) -> bool:
    with contextlib.suppress(OSError):
        return (run.path / STOP_RUN_FILE).read_text() == KEEP
    return False
