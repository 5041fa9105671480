"""Judges why a worker ended, and whether its node starts the workers again or ends: max_restarts,
equal failures in a row, who left early. Pure.

Nothing else in a node judges: guards, the agent, the seam to torch and the supervisor bring facts.
Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from launcher.agent.disk import says_full
from launcher.agent.membership.group import (
    EXHAUSTED,
    FAILED,
    FENCED_OUT,
    FINISHED,
    OTHER_RUN,
    STRANDED,
)
from launcher.contract import protocol
from launcher.contract.causes import Cause, cause_of_exit_code
from launcher.contract.ending import (
    Ending,
    NodeOutcome,
    WorkerEnd,
    WorkerExit,
    cause_of_ending,
    is_out_of_memory,
    is_own_failure,
    sort_ends,
)
from launcher.contract.errors import ExitCode, name_ending
from launcher.contract.node_plan import NodeTask, Static

MOST_LOSSES = 8
LOSSES_WITHIN_S = 60.0
"""If more than ``MOST_LOSSES`` coordinators are lost within this time, no other one is tried."""
NEAR_STEPS = 10
"""Failures are the same if their numbers of steps differ by less than one in so many."""
LOST_PEERS = 3
"""Lost peers without progress are tolerated so many times more often than own failures."""
CLOSING_S = 5.0
"""How long a script may take to end after it has closed its connections to the others."""

COMPLETED = Ending(cause=Cause.COMPLETED)
OTHERS_FINISHED = Ending(cause=Cause.COMPLETED, detail="the other nodes finished the run")
ENDED_BY_ANOTHER = Ending(cause=Cause.RENDEZVOUS_CLOSED, detail="another node ended the run")


# -- a worker ------------------------------------------------------------------------------------


def judge_worker(record: WorkerExit, exception: str) -> WorkerEnd:
    """How a worker ended, from its guard's ``record`` and the last line of its exception."""
    # It had failed by itself, and was still ending when the agent ended all workers.
    is_own = is_own_failure(exception) if exception else record.own_code != 0
    failed_first = record.had_failed and is_own
    exit_code = (record.own_code if failed_first else 0) or record.exit_code
    is_silent = exit_code != 0 and not exception
    if record.hung and exit_code != 0:
        cause = Cause.HANG
    elif record.was_asked and not failed_first:
        cause = Cause.TERMINATED
    elif is_out_of_memory([exit_code], oom_killed=record.oom_killed):
        cause = Cause.OUT_OF_MEMORY
    elif says_full(exception) or (is_silent and not record.has_room):
        cause = Cause.DISK_FULL
    else:
        cause = cause_of_ending(exit_code)
    return WorkerEnd(
        attempt=record.attempt,
        rank=record.rank,
        local_rank=record.local_rank,
        exit_code=exit_code,
        failed_at=record.failed_at,
        cause=cause,
        exception=exception,
        log="",
        steps=record.steps,
    )


# -- an attempt ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Again:
    """The workers start again."""

    cause: Cause


TOO_FEW_LEFT = "not started again: the other nodes had finished, and too few are left"
"""Why ``max_restarts`` was of no use."""


class AttemptJudge:
    """Remembers how attempts ended and judges the next step.

    A detail leaves out what the first worker's record says: both are shown together.

    The run ends after ``same_failure_limit`` equal failures in a row without progress, or once this
    node's workers have more faults than the user's ``max_restarts``. The coordinator counts the
    faults of all nodes.
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
        self, worker_ends: Sequence[WorkerEnd], steps: int, *, regroups: bool
    ) -> Again | Ending:
        """What follows an attempt of ``steps`` optimizer steps whose workers ended this way.

        ``regroups``: the agent itself ended the workers, because the group changed.
        """
        causes = [end for end in sort_ends(worker_ends) if not end.is_collateral]
        if regroups and all(end.cause is Cause.TERMINATED for end in worker_ends):
            return Again(cause=Cause.MEMBERSHIP)
        if causes and all(end.has_left for end in causes):
            return Again(cause=Cause.PREEMPTED)
        first = causes[0] if causes else None
        if first and first.exit_code == ExitCode.BAD_INPUT:
            return Ending(cause=Cause.BAD_INPUT)
        if first and first.cause is Cause.DISK_FULL:
            return Ending(cause=Cause.DISK_FULL)
        if end := self._judge_progress(first, steps):
            return end
        if first is None:
            # All workers blame a peer. Whether a node left is known once the group has re-formed.
            return Again(cause=Cause.LOST_PEER)
        self.faults += 1
        if self.faults > self.max_restarts:
            return self._give_up(first)
        return Again(cause=Cause.HANG if first.cause is Cause.HANG else Cause.WORKER_FAULT)

    def judge_closing(
        self, closed: str, worker_ends: Sequence[WorkerEnd], *, by_fault: bool
    ) -> Ending:
        """Why this node ends once the group is ``closed``, as ``GroupStatus`` says.

        ``worker_ends`` are those of this node's last attempt. ``by_fault``: the group had formed
        again because a worker failed.
        """
        if closed == FINISHED:
            return OTHERS_FINISHED
        if closed.startswith(OTHER_RUN):
            # Permanent: a further start would end the other run.
            who = closed.removeprefix(OTHER_RUN)
            detail = f"run {who} began later, and saves its checkpoints in the same folder"
            return Ending(cause=Cause.BAD_INPUT, detail=detail)
        has_failed = any(end.cause is not Cause.TERMINATED for end in worker_ends)
        if closed == STRANDED and by_fault and has_failed:
            why = TOO_FEW_LEFT if self.max_restarts > 0 else ""
            return Ending(cause=Cause.TRAINING_FAILED, detail=why)
        if closed not in (FAILED, EXHAUSTED):
            return ENDED_BY_ANOTHER
        used_up = closed == EXHAUSTED and self.max_restarts > 0
        cause = Cause.RESTARTS_EXHAUSTED if used_up else Cause.TRAINING_FAILED
        return Ending(cause=cause, detail="" if worker_ends else ENDED_BY_ANOTHER.detail)

    def _give_up(self, last: WorkerEnd) -> Ending:
        if last.cause is Cause.OUT_OF_MEMORY:
            return Ending(cause=Cause.OUT_OF_MEMORY)
        if self.max_restarts == 0:
            return Ending(cause=Cause.TRAINING_FAILED)
        most = self.max_restarts
        used = "its one restart is used up" if most == 1 else f"all {most} restarts are used up"
        return Ending(cause=Cause.RESTARTS_EXHAUSTED, detail=used)

    def _judge_progress(self, first: WorkerEnd | None, steps: int) -> Ending | None:
        signature = (first.cause, first.exit_code, first.exception) if first else (Cause.LOST_PEER,)
        last, last_steps = self._last
        is_near = abs(last_steps - steps) <= max(last_steps, steps) // NEAR_STEPS
        self._same = self._same + 1 if last == signature and is_near else 1
        self._last = signature, steps
        limit = self._same_failure_limit * (1 if first else LOST_PEERS)
        if self._same < limit or limit <= 0:
            return None
        what = f"the same failure {self._same} times without progress"
        away = "" if first else ": other nodes went away"
        return Ending(cause=Cause.RESTARTS_EXHAUSTED, detail=what + away)


def name_who_left(worker_ends: Iterable[WorkerEnd]) -> tuple[WorkerEnd, ...]:
    """The workers that failed, causes first.

    If all failed only because another worker is gone, and a worker had ended with exit code 0
    before, that worker is the cause: no worker may leave while others still wait for it.
    """
    worker_ends = tuple(worker_ends)
    failed = sort_ends(end for end in worker_ends if end.exit_code != 0)
    left = min(
        (end for end in worker_ends if end.exit_code == 0 and end.cause is not Cause.TERMINATED),
        key=lambda end: end.failed_at,
        default=None,
    )
    waited = [end for end in failed if end.is_collateral or end.cause is Cause.HANG]
    first = next((end for end in waited if end.cause is not Cause.TERMINATED), None)
    if first is None or left is None or len(waited) < len(failed):
        return failed
    before_s = first.failed_at - left.failed_at
    if before_s < -CLOSING_S:
        return failed
    how = "hung" if first.cause is Cause.HANG else "failed"
    what = (
        f"it had ended with exit code 0, {max(0.0, before_s):.1f} s before rank {first.rank} {how}"
    )
    return (replace(left, cause=Cause.EXITED_EARLY, exception=what), *failed)


# -- the agent -----------------------------------------------------------------------------------


def judge_raised(
    known_cause: Cause | None,
    message: str,
    *,
    says_full: bool = False,
    had_group: bool = False,
    succeeded: bool = False,
    first: WorkerEnd | None = None,
) -> Ending:
    """Why the node ends once its agent has raised an error with this ``message``.

    ``known_cause`` is what the error's type means, None for a fault of the agent itself.
    ``says_full``: the error says that a disk is full. ``had_group``: this node has been in a group,
    or has reached its coordinator. ``succeeded``: all workers have ended well. ``first`` is the
    first worker that failed.
    """
    if known_cause is Cause.PREEMPTED and succeeded:
        # It was stopped while it waited for the others; its own work is done.
        return COMPLETED
    if known_cause is Cause.TRAINING_FAILED and first and first.cause is Cause.DISK_FULL:
        return Ending(cause=Cause.DISK_FULL)
    cause = known_cause or Cause.AGENT_FAILED
    if says_full:
        cause = Cause.DISK_FULL
    elif cause is Cause.STORE_LOST and not had_group:
        cause = Cause.RENDEZVOUS_UNREACHABLE
    return Ending(cause=cause, detail=message)


def judge_finished(end: Ending, closed: str | None) -> Ending:
    """The end of a node whose group has this ``GroupStatus.closed``; None: it has no group."""
    if end.cause is Cause.COMPLETED and closed in ("", FENCED_OUT):
        return replace(end, detail=protocol.OTHERS_GO_ON)
    return end


def may_meet_again(
    task: NodeTask, cause: Cause, losses_at: Sequence[float], *, fenced: bool
) -> bool:
    """Whether another coordinator may be tried after coordinators were lost at ``losses_at``.

    The times are in seconds of one clock, the present loss last. ``fenced``: the job goes on around
    another coordinator. Only the losses of the last ``LOSSES_WITHIN_S`` count: a run of many days
    may have many.
    """
    recent = [at for at in losses_at if losses_at[-1] - at <= LOSSES_WITHIN_S]
    is_static = isinstance(task.node.rendezvous, Static)
    if is_static or cause is Cause.PREEMPTED or len(recent) > MOST_LOSSES:
        return False
    if cause is Cause.STORE_LOST:
        return True
    if task.settings.meet_dir:
        # Any node serves where none answers, so only other nodes can be missing.
        return fenced
    has_others = len(task.settings.stores) > 1
    return has_others and (fenced or cause is Cause.RENDEZVOUS_UNREACHABLE)


# -- the node ------------------------------------------------------------------------------------


def judge_node(
    reported: NodeOutcome | None,
    unreported: NodeOutcome,
    code: int,
    stop: Cause | None,
    *,
    killed: bool,
    had_begun: bool,
) -> NodeOutcome:
    """The node's outcome once its agent has ended with ``code``, negative for a signal.

    ``reported`` is the agent's own outcome. Without it, ``unreported`` gets a cause. ``stop`` is
    why the node was asked to end. ``killed``: since the agent began, the kernel has killed a
    process for memory. ``had_begun``: the agent had started workers.
    """
    if stop and (reported is None or reported.cause is not Cause.COMPLETED):
        return replace(reported or unreported, cause=stop, detail="")
    if reported is not None:
        return reported
    if is_out_of_memory([code], oom_killed=killed):
        return replace(
            unreported, cause=Cause.OUT_OF_MEMORY, detail="the agent itself ran out of memory"
        )
    cause = cause_of_exit_code(128 - code) if code < 0 else Cause.AGENT_FAILED
    detail = f"the agent ended with {name_ending(code)} and without a report"
    by_library = cause_of_ending(code) is not Cause.KILLED and code != ExitCode.AGENT_FAILED
    if by_library and not had_begun:
        # Such as torch in too small an address space: to start the node again would change nothing.
        cause, detail = Cause.BAD_INPUT, f"{detail}, while it imported torch"
    return replace(unreported, cause=cause, detail=detail)
