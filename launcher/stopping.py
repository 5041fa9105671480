"""Ends a run from any terminal: asks the launcher that follows it, or does it in its place."""

from __future__ import annotations

from launcher.choose import KUBERNETES, open_target
from launcher.clock import Clock, SystemClock
from launcher.errors import InputError
from launcher.follow import STOP_REQUEST_FILE, write_outcome
from launcher.proc import is_stopped
from launcher.runs import RunFolder, write_atomically
from launcher.state import Reason

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
    if run.launcher_pid() is not None and run.read_outcome() is None:
        said = KEEP if keep else "stop requested by launcher stop\n"
        write_atomically(run.path / STOP_REQUEST_FILE, said)
        deadline = clock.monotonic() + grace_s + MARGIN_S
        while (pid := run.launcher_pid()) is not None and clock.monotonic() < deadline:
            if outcome := run.read_outcome():
                return f"{run.run_id}: {outcome.state}, {outcome.reason}"
            if is_stopped(pid):
                clock.sleep(STOPPED_LIMIT_S)
                if is_stopped(pid):
                    notes.append(f"its launcher (pid {pid}) is stopped; end it: kill -9 {pid}")
                    break
            clock.sleep(0.1)
    target = open_target(plan.target, run.path.parent)
    if keep:
        from launcher.targets.kubernetes import KubernetesTarget

        assert isinstance(target, KubernetesTarget), "looked at above"
        target.collect(plan)
        target.suspend(plan)
    else:
        target.stop(run.run_id, grace_s)
    outcome = run.read_outcome()
    if outcome is None:
        outcome = write_outcome(run, plan, Reason.STOP_REQUESTED, "", clock.wall())
    left = "its object is kept" if keep else "nothing of it is left"
    return "\n".join(
        (f"{run.run_id}: {outcome.state}, {outcome.reason}; {left}", *notes, *target.notes)
    )
