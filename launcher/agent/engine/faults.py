"""Decides whether workers that have ended are started again. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from launcher.contract.causes import Cause
from launcher.contract.errors import ExitCode
from launcher.contract.worker_end import WorkerEnd, describe, sort_ends


@dataclass(frozen=True, kw_only=True)
class RestartWorkers:
    """Start the workers again."""

    cause: Cause


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """End the run."""

    reason: Cause
    detail: str


class FaultBook:
    """Remembers how attempts ended and judges the next step.

    The run ends after ``same_failure_limit`` equal failures in a row without progress, or once this
    node's workers have more faults than the user's ``max_restarts``. The roster counts the faults
    of all nodes.
    """

    def __init__(self, *, max_restarts: int, same_failure_limit: int) -> None:
        self.restarts: Counter[str] = Counter()
        self.max_restarts = max_restarts
        self.faults = 0
        """Faults of this node's workers."""
        self._same_failure_limit = same_failure_limit
        self._last: tuple[tuple[object, ...], int] = (), 0
        """The last failure, by what makes two of them equal, and the steps of its attempt."""
        self._same = 0

    def judge(
        self, ends: tuple[WorkerEnd, ...], steps: int, *, regroups: bool = False
    ) -> RestartWorkers | GiveUp:
        """Decides what follows an attempt of ``steps`` optimizer steps with these ends.

        ``regroups``: the agent itself ended the workers, because the group changed.
        """
        causes = [end for end in sort_ends(ends) if not end.is_collateral]
        if regroups and all(end.cause is Cause.TERMINATED for end in ends):
            return RestartWorkers(cause=Cause.MEMBERSHIP)
        if causes and all(end.has_left for end in causes):
            return RestartWorkers(cause=Cause.PREEMPTED)
        if causes and causes[0].exit_code == ExitCode.BAD_INPUT:
            return GiveUp(reason=Cause.BAD_INPUT, detail=describe(causes[0]))
        if causes and causes[0].cause == Cause.DISK_FULL:
            return GiveUp(reason=Cause.DISK_FULL, detail=describe(causes[0]))
        first = causes[0] if causes else None
        if give_up := self._judge_progress(first, steps):
            return give_up
        if first is None:
            # All workers blame a peer. Whether a node left is known once the group has re-formed.
            return RestartWorkers(cause=Cause.LOST_PEER)
        self.faults += 1
        if self.faults > self.max_restarts:
            return self._give_up(first)
        return RestartWorkers(cause=Cause.HANG if first.cause is Cause.HANG else Cause.WORKER_FAULT)

    def _give_up(self, last: WorkerEnd) -> GiveUp:
        detail = describe(last)
        if last.cause is Cause.OUT_OF_MEMORY:
            return GiveUp(reason=Cause.OUT_OF_MEMORY, detail=detail)
        if self.max_restarts == 0:
            return GiveUp(reason=Cause.TRAINING_FAILED, detail=detail)
        used = f"all {self.max_restarts} restarts are used up; last: {detail}"
        return GiveUp(reason=Cause.RESTARTS_EXHAUSTED, detail=used)

    def _judge_progress(self, first: WorkerEnd | None, steps: int) -> GiveUp | None:
        signature = (first.cause, first.exit_code, first.exception) if first else (Cause.LOST_PEER,)
        last, last_steps = self._last
        # The same failure comes after about the same number of steps.
        is_near = abs(last_steps - steps) <= max(last_steps, steps) // 10
        self._same = self._same + 1 if last == signature and is_near else 1
        self._last = signature, steps
        # Lost peers without progress are tolerated three times more often than own failures.
        limit = self._same_failure_limit * (1 if first else 3)
        if self._same < limit or limit <= 0:
            return None
        what = describe(first) if first else "other nodes went away"
        return GiveUp(
            reason=Cause.RESTARTS_EXHAUSTED,
            detail=f"the same failure {self._same} times without progress: {what}",
        )
