"""Follows a run on Slurm, by its files more than by the queue: what is printed, which nodes are
silent, how the run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM, Cause, cause_of_exit_code, parse_cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.states import NodeState
from launcher.follow.console import Console
from launcher.follow.endings import Part, decide_parts, judge_part, judge_parts
from launcher.follow.nodes import FolderWatch
from launcher.follow.requests import read_withdrawn
from launcher.follow.target import Observation, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import tell_moment
from launcher.targets.shared_folder import changed_at, observe_folder
from launcher.targets.slurm.client import REASON_OF_STATE, QueuedJob
from launcher.targets.slurm.inside import step_by_hand
from launcher.targets.slurm.job_starts import (
    JobStart,
    find_unrecorded,
    last_words,
    newest_starts,
    read_jobs,
    read_queue,
    read_starts,
    setup_words,
)
from launcher.targets.slurm.queue_watch import HELD_BACK_S, QueueWatch
from launcher.targets.slurm.settings import SlurmSettings

SILENT_S = 3 * protocol.ALIVE_S
SUBMIT_LIMIT_S = 300.0
"""How long a launcher elsewhere may take from the run's folder to its job: it copies the code, and
Slurm's controller may be slow."""
END_LIMIT_S = 60.0
"""How long Slurm may take to end jobs that were cancelled."""


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
        self._told: dict[str, str] = {}
        self._is_away = False
        self._missing_since: int | None = None
        self._decided_at: float | None = None

    def turn(self) -> Ending | None:
        if (end := self._folder.poll()) is not None:
            return end
        self._watch.look()
        starts = read_starts(self._run)
        jobs = self._watch.jobs or ()
        self._print_news(starts, jobs)
        return self._judge(starts, jobs)

    def _judge(self, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]) -> Ending | None:
        wanted = wanted_elements(self._run, self.plan)
        if (end := decide_end(self._run, self.plan, starts, jobs, wanted)) is None:
            self._decided_at = None
            return self._judge_gone(starts, jobs)
        if is_all_over(starts, wanted):
            return end if is_told_why(end, starts, jobs) or self._watch.ask_soon() else None
        # Nodes that still run have the grace to notice the run's end.
        now = self._clock.monotonic()
        self._decided_at = now if self._decided_at is None else self._decided_at
        return end if now - self._decided_at > self.plan.stop_grace_s else None

    def _judge_gone(
        self, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]
    ) -> Ending | None:
        """The end of a run whose jobs left the queue before their scripts recorded an end."""
        if self._watch.jobs is None or any(not job.is_over for job in jobs):
            self._missing_since = None
            return None
        looks = self._watch.looks
        self._missing_since = looks if self._missing_since is None else self._missing_since
        # Jobs count as gone after two answers in a row without them: what a script wrote at its
        # end may be delayed by the file system, and has come by then.
        return end_by_queue(self._run, starts, jobs) if looks > self._missing_since else None

    # -- what a person is told --------------------------------------------------------------------

    def _note(self, about: str, text: str, of_node: int | None = None) -> None:
        """Prints a text once; with ``of_node``, also adds it to the run's timeline."""
        if self._told.get(about) != text:
            self._told[about] = text
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
                why = start.stop or cause_of_exit_code(start.code or 0).value
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

    def end(self, why: Ending, *, asked: bool) -> None:
        """As ``Driver.end``: what the queue still holds of the run is cancelled."""
        wanted = wanted_elements(self._run, self.plan)
        if asked or not is_all_over(read_starts(self._run), wanted):
            self._target.stop(self._run.run_id, self.plan.stop_grace_s if asked else 0)

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """As ``Driver.abandon``: a job that was submitted goes on without a launcher."""
        if not isinstance(error, KeyboardInterrupt):
            return not submitted and isinstance(error, LauncherError)
        # A second Ctrl-C, perhaps before sbatch has answered. A third does not end the wait.
        names = " ".join(map(str, read_jobs(self._run)))
        what, by_hand = f"job {names}", f"scancel {names}"
        if job := SlurmSettings.of(self.plan).inside:
            what, by_hand = f"its step of job {job}", step_by_hand(job)
        elif not names:  # sbatch has not answered yet
            what, by_hand = "what was submitted", "squeue --me, then scancel JOBID"
        self._console.note(
            f"cancelled at once: waits until Slurm has ended {what}, at most {END_LIMIT_S:g} s; "
            f"by hand: {by_hand}"
        )
        self._target.stop(self._run.run_id, 0)
        return True


# -- what the files and the queue say, without a launcher too ------------------------------------


def wanted_elements(run: RunFolder, plan: LaunchPlan) -> frozenset[int | None]:
    """The elements that the run is meant to have; None for an allocation's only job."""
    if SlurmSettings.of(plan).kind == "allocation":
        return frozenset({None})
    return frozenset(n.node_index for n in plan.nodes) - read_withdrawn(run, plan)


def is_all_over(starts: tuple[JobStart, ...], wanted: frozenset[int | None]) -> bool:
    """Whether each wanted element's script has ended and has not requeued its job."""
    newest = newest_starts(starts)
    over = {e for e, start in newest.items() if start.code is not None and not start.goes_on}
    return wanted <= over


def decide_end(
    run: RunFolder,
    plan: LaunchPlan,
    starts: tuple[JobStart, ...],
    jobs: tuple[QueuedJob, ...],
    wanted: frozenset[int | None],
) -> Ending | None:
    """How the run ended, as soon as its nodes' outcomes or its scripts' ends make that certain."""
    told = (run.read_node_outcome(*node) for node in dict(run.incarnations()).items())
    newest = [start for element, start in newest_starts(starts).items() if element in wanted]
    over = [start for start in newest if start.code is not None and not start.goes_on]
    parts = [find_part(run, start, jobs) for start in over]
    going = len(wanted) - len(over)
    return decide_parts(filter(None, told), parts, still_running=going, min_nodes=plan.min_nodes)


def is_told_why(end: Ending, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]) -> bool:
    """Whether more than a signal is known: scancel, preemption and time limits all send one."""
    by_signal = end.cause in (Cause.PREEMPTED, Cause.KILLED)
    newest, over = newest_starts(starts).values(), {job.name for job in jobs if job.is_over}
    return not by_signal or any(s.stop for s in newest) or all(s.name in over for s in newest)


def end_by_queue(
    run: RunFolder, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]
) -> Ending:
    """How a run ended whose files record no end, by the queue if that still knows it."""
    last = [start for start in starts if start.code is not None][-1:]
    if parts := find_named(jobs) or [find_part(run, start, jobs) for start in last]:
        return judge_parts(parts)
    names = ", ".join(job.name for job in jobs) or ", ".join(map(str, read_jobs(run)))
    # Also of a script that ended before its program ran.
    known = starts or [JobStart(job=j.number, element=j.element, restarts=0) for j in jobs]
    words = next((text for start in known if (text := last_words(run, start))), "")
    log = f"; its log says: {words}" if words else ""
    return judge_part(Part(words=f"job {names} ended without recording why{log}"))


def find_named(jobs: Iterable[QueuedJob]) -> list[Part]:
    """The jobs whose state says why they ended."""
    named = [(job.name, REASON_OF_STATE[job.state]) for job in jobs if job.state in REASON_OF_STATE]
    return [Part(cause=cause, words=f"job {name}: {words}") for name, (cause, words) in named]


def find_part(run: RunFolder, start: JobStart, jobs: tuple[QueuedJob, ...]) -> Part:
    """What is known of a start that has ended: its stop request, its state, or its exit code."""
    fails = 0 < (start.code or 0) < RETRY_FROM
    # Its script gave up at a time limit: the notice of that is not why.
    gave_up = fails and start.stop == Cause.PREEMPTED
    with contextlib.suppress(ValueError):
        if not gave_up:
            return Part(cause=parse_cause(start.stop), exit_code=start.code)
    if named := find_named(job for job in jobs if job.name == start.name):
        return replace(named[0], exit_code=start.code)
    words = ""
    if start.code and not any(run.incarnations()):
        words = last_words(run, start)
    elif gave_up or (fails and SlurmSettings.of(run.read_plan()).setup):
        words = setup_words(run, start)
    return Part(words=words, exit_code=start.code)


def find_end(run: RunFolder, plan: LaunchPlan, stop: Callable[[], None]) -> Ending | None:
    """As ``Target.find_end``; asks the queue once, and only if the files do not say it."""
    if not SlurmSettings.of(plan).inside:
        find_unrecorded(run)
    starts, wanted = read_starts(run), wanted_elements(run, plan)
    end = decide_end(run, plan, starts, (), wanted)
    is_own = not SlurmSettings.of(plan).inside
    if end is None or (is_own and not is_told_why(end, starts, ())):
        jobs = read_queue(run)
        if any(not job.is_over for job in jobs) or is_being_submitted(run, SystemClock().wall()):
            return None
        starts = read_starts(run)
        end = decide_end(run, plan, starts, jobs, wanted) or end_by_queue(run, starts, jobs)
    if not is_all_over(starts, wanted):
        with contextlib.suppress(TargetError):
            stop()
    return end


def is_being_submitted(run: RunFolder, now: float) -> bool:
    """Whether a launcher that cannot be seen from here may be about to submit the run's job."""
    is_new = now - run.submitted_at() < SUBMIT_LIMIT_S
    return is_new and run.is_elsewhere and not read_jobs(run)


def find_silent(run: RunFolder) -> dict[int, str]:
    """Which nodes' agents show no life though another one does, and for how long.

    Only the file server's times are compared: the clocks of machines differ.
    """
    signs = {
        index: changed_at(run.node_dir(index, incarnation) / protocol.ALIVE_FILE)
        for index, incarnation in dict(run.incarnations()).items()
    }
    ages = {i: max(signs.values()) - at for i, at in signs.items() if at > float("-inf")}
    return {i: f"no sign of life for {s:.0f} s" for i, s in ages.items() if s > SILENT_S}


def observe(run: RunFolder, plan: LaunchPlan, jobs: tuple[QueuedJob, ...]) -> Observation:
    """Each node by its own outcome, else by the start that it belongs to."""
    newest, silent = newest_starts(read_starts(run)), find_silent(run)
    by_element = {job.element: job for job in jobs}
    is_one = SlurmSettings.of(plan).kind == "allocation"

    def look(index: int) -> tuple[NodeState, str]:
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
            return NodeState.MISSING, f"{host}: {silent[index]}"
        return NodeState.RUNNING, host

    return observe_folder(run, plan, look)
