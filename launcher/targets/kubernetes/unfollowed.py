"""A run of a cluster that no launcher follows: how it ended, and what its pods write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.contract.clock import Clock
from launcher.contract.errors import TargetError
from launcher.contract.reasons import Reason
from launcher.follow.loop import fold
from launcher.follow.nodes import FOUND_LATER
from launcher.follow.target import RunEnd
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.pod_states import parse_ended_at, reason_of_end

if TYPE_CHECKING:
    from launcher.targets.kubernetes.target import KubernetesTarget

READ_END_S = 2.0
"""Between two looks at the job's object."""


def find_end(run: RunFolder, plan: LaunchPlan, target: KubernetesTarget) -> RunEnd | None:
    """As ``Target.find_end``. The job's own object says it: pods may be away for a while.

    None also while another process brings the last output: it folds.
    """
    end = target.read_end(plan)
    if end is None or not target.pods(plan).writes_output():
        return None
    reason, detail = reason_of_end(end, target.pods(plan).read())
    with contextlib.suppress(TargetError):
        target.collect(plan)
        if reason is Reason.COMPLETED and not run.is_borrowed:
            target.remove(plan)
            target.wait_gone(plan, 0)
    at = parse_ended_at(target.read_job(plan) or {}) if run.is_borrowed else None
    return RunEnd(reason=reason, detail=detail or FOUND_LATER, at=at)


def bring_output(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, clock: Clock, *, follow: bool
) -> Iterator[None]:
    """As ``Target.bring_output``; with ``follow`` the run has its outcome in the end.

    A cluster that stops answering is waited for; ``TargetError`` is raised by the first turn alone,
    ``ApiError`` also where this user may not read logs.
    """
    pods = target.pods(plan)
    if not follow:
        pods.read_logs()
        return
    pods.read()
    next_look_at = float("-inf")
    while run.read_outcome() is None:
        pods.follow_logs()
        if pods.refusal is not None:
            raise pods.refusal
        if clock.monotonic() >= next_look_at:
            with contextlib.suppress(TargetError):
                fold(run, target, clock.wall())
            next_look_at = clock.monotonic() + READ_END_S
        yield
