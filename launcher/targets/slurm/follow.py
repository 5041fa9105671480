"""Follows a run on Slurm, by its files more than by the queue: what is printed, which nodes are
silent, how the run ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM, Cause, NodeState, cause_of_exit_code, parse_cause
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending
from launcher.contract.errors import LauncherError, TargetError
from launcher.follow.console import Console
from launcher.follow.endings import Part, decide_parts
from launcher.follow.nodes import FolderWatch
from launcher.follow.requests import read_withdrawn
from launcher.follow.target import Observation, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import tell_moment
from launcher.targets.shared_folder import find_silent, observe_folder
from launcher.targets.slurm import client
from launcher.targets.slurm.client import REASON_OF_STATE, QueuedJob
from launcher.targets.slurm.job_starts import (
    JobStart,
    by_hand,
    is_being_submitted,
    last_words,
    newest_starts,
    read_jobs,
    read_queue,
    read_starts,
    setup_words,
)
from launcher.targets.slurm.settings import SlurmSettings

LOOK_S = 10.0
"""Seconds between two questions to the controller: sites ban users who ask more often."""
HELD_BACK_S = 15
"""How long a requeued job is held back; Slurm by itself holds it for about two minutes.

A node refuses a job that begins in the very second in which the node ended it, and Slurm then
fails the job. The node uses its own clock, which may be this far ahead of the controller's.
"""
SILENT_S = 3 * protocol.ALIVE_S
END_LIMIT_S = 60.0
"""How long Slurm may take to end jobs that were cancelled."""
LATE_S = 2 * LOOK_S
"""How late the file system may show what the script of a job that has left the queue wrote."""


class SlurmDriver:
    """A ``Driver`` that watches the jobs of a run; Slurm starts and requeues them."""

    def __init__(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        target: Target,
        console: Console,
        clock: Clock,
    ) -> None:
        self.plan = plan
        self.live: tuple[int, ...] = ()
        self._run, self._target = run, target
        self._console, self._clock = console, clock
        self._watch = QueueWatch(run)
        self._folder = FolderWatch(run, console, clock)
        self._printed: dict[str, str] = {}
        self._is_away = False
        self._decided_at: float | None = None

    def turn(self) -> Ending | None:
        if (end := self._folder.poll()) is not None:
            return end
        self._watch.ask_if_due()
        starts, jobs = read_starts(self._run), self._watch.jobs
        self._print_news(starts, jobs or ())
        if (end := decide_end(self._run, self.plan, starts, jobs)) is None:
            self._decided_at = None
            return None
        if is_all_over(self._run, self.plan, starts):
            return end
        now = self._clock.monotonic()
        self._decided_at = now if self._decided_at is None else self._decided_at
        # Nodes that still run have the grace to notice the run's end.
        limit_s = LATE_S if has_left(jobs) else self.plan.stop_grace_s
        return end if now - self._decided_at > limit_s else None

    # -- what a person is told --------------------------------------------------------------------

    def _note(self, about: str, text: str, of_node: int | None = None) -> None:
        """Prints a text once; with ``of_node``, also adds it to the run's timeline."""
        if self._printed.get(about) != text:
            self._printed[about] = text
            self._console.note(text)
            if of_node is not None:
                tell_moment(self._run, of_node, 0, at=self._clock.wall(), text=text)

    def _print_news(self, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]) -> None:
        away = self._watch.error is not None
        if away != self._is_away:
            self._is_away = away
            error = self._watch.error
            line = f"{error.what}; the run goes on" if error else "the controller answers again"
            self._console.note(line)
        for job_id in () if SlurmSettings.of(self.plan).inside else read_jobs(self._run):
            self._note(str(job_id), f"job {job_id} was submitted; squeue --jobs={job_id}")
        by_name = {start.name: start for start in starts}
        for start in starts:
            again = f", start {start.restarts + 1}" if start.restarts else ""
            self._note(f"{start.key} began", f"job {start.name} runs on {start.nodes}{again}")
            if start.goes_on:
                # Slurm itself preempts by SIGTERM, which leaves no request.
                is_limit = start.stop == Cause.PREEMPTED
                why = start.stop or cause_of_exit_code(start.code or 0).value
                why = "its time limit" if is_limit else why
                self._note(f"{start.key} ended", f"job {start.name} is queued again: {why}")
        for start in self._watch.hastened:
            text = (
                f"job {start.name} was requeued; begins in {HELD_BACK_S} s or when nodes are free"
            )
            self._note(f"{start.key} hastened", text)
        for job in jobs:
            known = by_name.get(job.name)
            if job.state == "PENDING" and (known is None or known.code is not None):
                text = f"job {job.name} waits in the queue: {job.why}"
                self._note(f"{job.name} waits", text, job.element or 0)

    # -- requests ---------------------------------------------------------------------------------

    def scale(self, nodes: int) -> None:
        self._target.scale(self._run, self.plan, nodes)

    def end(self, why: Ending, *, stop_requested: bool) -> None:
        """As ``Driver.end``: what the queue still holds of the run is cancelled."""
        if stop_requested or not is_all_over(self._run, self.plan, read_starts(self._run)):
            self._target.stop(self._run.run_id, self.plan.stop_grace_s if stop_requested else 0)

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """As ``Driver.abandon``: a job that was submitted goes on without a launcher."""
        if not isinstance(error, KeyboardInterrupt):
            return not submitted and isinstance(error, LauncherError)
        # A second Ctrl-C, perhaps before sbatch has answered. A third does not end the wait.
        fix = by_hand(self._run, SlurmSettings.of(self.plan).inside)
        waits = f"waits at most {END_LIMIT_S:g} s until Slurm has ended it"
        self._console.note(f"cancelled at once: {waits}; by hand: {fix}")
        self._target.stop(self._run.run_id, 0)
        return True


class QueueWatch:
    """Asks Slurm for the state of a run's jobs every ``LOOK_S``, each time in a thread.

    It also tells Slurm to start requeued jobs sooner than Slurm does by itself. A question to a
    controller that is away takes long to fail, and must not hold up the output.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run, self._question = run, threading.Thread()
        # A job that was just submitted waits in the queue; its files say when it starts.
        self._next_at = time.monotonic() + LOOK_S / 5
        self._tried: set[str] = set()
        self.jobs: tuple[QueuedJob, ...] | None = None
        """The jobs by the last answer; None before the first."""
        self.error: TargetError | None = None
        """Why the last question had no answer."""
        self.hastened: tuple[JobStart, ...] = ()
        """Starts after which Slurm was told to hold their jobs back for ``HELD_BACK_S`` only."""

    def ask_if_due(self) -> None:
        """Asks if it is time to. Does not wait for the answer, which has a limit."""
        is_early = time.monotonic() < self._next_at
        if not is_early and not self._question.is_alive() and read_jobs(self._run):
            self._question = threading.Thread(target=self._ask_slurm, daemon=True, name="queue")
            self._question.start()

    def _ask_slurm(self) -> None:
        try:
            self.jobs, self.error = read_queue(self._run), None
            self._hasten(self.jobs)
        except TargetError as error:
            self.error = error
        except OSError as error:
            # Such as a file server that is away.
            self.error = TargetError(f"Slurm cannot be asked: {error}", "it is asked again")
        finally:
            self._next_at = time.monotonic() + LOOK_S

    def _hasten(self, jobs: tuple[QueuedJob, ...]) -> None:
        """Tells Slurm, once for each requeue, when jobs may begin that it holds back.

        Not after a fault of the platform: Slurm may not know yet that the job's node is lost, and
        would start the job there again.
        """
        waiting = {job.name for job in jobs if (job.state, job.why) == ("PENDING", "BeginTime")}
        last = {start.name: start for start in read_starts(self._run) if start.name in waiting}
        held = [start for start in last.values() if not start.is_fault]
        if new := [start for start in held if start.key not in self._tried]:
            self._tried.update(start.key for start in new)
            # An error is ignored: a site may not allow this, or a job may have started meanwhile.
            with contextlib.suppress(client.SlurmError):
                client.start_within([start.name for start in new], HELD_BACK_S)
                self.hastened += tuple(new)


# -- what the files and the queue say, without a launcher too ------------------------------------


def wanted_elements(run: RunFolder, plan: LaunchPlan) -> frozenset[int | None]:
    """The elements that the run is meant to have; None for an allocation's only job."""
    if SlurmSettings.of(plan).kind == "allocation":
        return frozenset({None})
    return frozenset(n.node_index for n in plan.nodes) - read_withdrawn(run, plan)


def is_all_over(run: RunFolder, plan: LaunchPlan, starts: tuple[JobStart, ...]) -> bool:
    """Whether each wanted element's script has ended and has not requeued its job."""
    over = {start.element for start in newest_starts(starts).values() if start.is_over}
    return wanted_elements(run, plan) <= over


def has_left(jobs: tuple[QueuedJob, ...] | None) -> bool:
    """Whether the queue has none of the run's ``jobs`` any more; None before it was asked."""
    return jobs is not None and all(job.is_over for job in jobs)


def decide_end(
    run: RunFolder,
    plan: LaunchPlan,
    starts: tuple[JobStart, ...],
    jobs: tuple[QueuedJob, ...] | None = None,
) -> Ending | None:
    """How the run ended, as soon as its nodes' outcomes or its scripts' ends make that certain.

    ``jobs`` are the run's in the queue, None before it was asked. Once they have all left it, a
    script that recorded no end has ended too.
    """
    outcomes = (run.read_node_outcome(*node) for node in dict(run.incarnations()).items())
    wanted, newest = wanted_elements(run, plan), newest_starts(starts)
    over = [start for e, start in newest.items() if e in wanted and start.is_over]
    going = wanted.difference(start.element for start in over)
    if has_left(jobs):
        lost = [newest.get(e) or unseen_start(run, e, jobs or ()) for e in going]
        over += sorted(lost, key=lambda start: (not last_words(run, start), start.name))
        going = frozenset()
    parts = [find_part(run, start, jobs or ()) for start in over]
    return decide_parts(
        filter(None, outcomes), parts, still_running=len(going), min_nodes=plan.min_nodes
    )


def unseen_start(run: RunFolder, element: int | None, jobs: tuple[QueuedJob, ...]) -> JobStart:
    """The start of a job that ended before its program ran; of job 0, if none was submitted."""
    numbers = [job.number for job in jobs if job.element == element] or [0, *read_jobs(run)]
    return JobStart(job=numbers[-1], element=element, restarts=0)


def find_part(run: RunFolder, start: JobStart, jobs: tuple[QueuedJob, ...]) -> Part:
    """What is known of a start that has ended: its stop request, its state, or its exit code."""
    fails = 0 < (start.code or 0) < RETRY_FROM
    # Its script gave up at a time limit: the notice of that is not why.
    gave_up = fails and start.stop == Cause.PREEMPTED
    part = None
    with contextlib.suppress(ValueError):
        part = Part(cause=parse_cause(start.stop), exit_code=start.code)
    if part and start.is_over and not gave_up:
        return part
    states = (job.state for job in jobs if job.name == start.name)
    if named := next(filter(None, map(REASON_OF_STATE.get, states)), None):
        cause, words = named
        return Part(cause=cause, words=f"job {start.name}: {words}", exit_code=start.code)
    if not start.is_over:
        # Requeued, it waited for its next start; else its script recorded no end.
        return part or Part(words=_describe_lost(run, start))
    words = ""
    if start.code and not any(run.incarnations()):
        words = last_words(run, start)
    elif gave_up or (fails and SlurmSettings.of(run.read_plan()).setup):
        words = setup_words(run, start)
    return Part(words=words, exit_code=start.code)


def _describe_lost(run: RunFolder, start: JobStart) -> str:
    if not start.job:
        return "its launcher ended before it had submitted a job"
    words = last_words(run, start)
    log = f"; its log says: {words}" if words else ""
    return f"job {start.name} ended without recording why{log}"


def find_end(run: RunFolder, plan: LaunchPlan, stop: Callable[[], None]) -> Ending | None:
    """As ``Target.find_end``; asks the queue once, and only if the files do not say it."""
    if is_being_submitted(run):
        return None
    starts = read_starts(run)
    end = decide_end(run, plan, starts)
    if end is None:
        jobs = read_queue(run)
        if not has_left(jobs):
            return None
        starts = read_starts(run)
        end = decide_end(run, plan, starts, jobs)
    if not is_all_over(run, plan, starts):
        with contextlib.suppress(TargetError):
            stop()
    return end


def observe(run: RunFolder, plan: LaunchPlan, jobs: tuple[QueuedJob, ...]) -> Observation:
    """Each node by its own outcome, else by the start that it belongs to."""
    newest, silent = newest_starts(read_starts(run)), find_silent(run, SILENT_S)
    by_element = {job.element: job for job in jobs}
    is_one = SlurmSettings.of(plan).kind == "allocation"

    def state_of(index: int) -> tuple[NodeState, str]:
        element = None if is_one else index
        start, job = newest.get(element), by_element.get(element)
        waits = job is not None and job.state in ("PENDING", "REQUEUED", "COMPLETING")
        if waits or (start is not None and start.goes_on):
            return NodeState.PENDING, job.why if job else ""
        if start is None or start.code is not None:
            return NodeState.MISSING, ""
        names = start.nodes.split()
        host = "".join(names[index : index + 1] or names[:1])
        if is_one and index >= len(names):
            return NodeState.MISSING, f"job {start.name} got {len(names)} nodes"
        if index in silent:
            return NodeState.MISSING, f"{host}: no sign of life for {silent[index]:.0f} s"
        return NodeState.RUNNING, host

    return observe_folder(run, plan, state_of)
