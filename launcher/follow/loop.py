"""Follows a run from its submission to its outcome: shows its output (a lone worker's without a
prefix, progress of rank 0 alone), takes requests, waits for storage that is away.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from launcher.agent import disk
from launcher.agent.stopping import StopFiles
from launcher.contract import protocol
from launcher.contract.causes import Cause, RunState
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.waits import POLL_S
from launcher.follow.console import Console, prefix_of
from launcher.follow.endings import FOLDER_REMOVED, judge_error, judge_found, judge_run
from launcher.follow.requests import (
    count_nodes,
    count_returned,
    is_stop_requested,
    take_scale_request,
)
from launcher.follow.tails import LedgerTails, Output, RunTails
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import WorkerLog, describe_loss
from launcher.runs.failure import read_node_outcomes, read_report
from launcher.runs.folder import RunFolder, check_folder, full_disk
from launcher.runs.ledger import read_heals, read_restarts
from launcher.runs.outcome import Outcome

POLL_ALONE_S, LONGEST_POLL_S = 0.2, 2.0
"""Seconds between two turns of a run that needs no launcher: with few workers, and the most."""
WORKERS_A_TURN = 20
"""Up to this number of workers, ``POLL_ALONE_S`` holds; above it, the pause grows in proportion."""
STOPPING_S = 5.0
"""Seconds between two lines that say that a run is still stopping."""
PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN})
"""Errors of a network file system while its server restarts."""
STORAGE_LIMIT_S = 60.0
"""How long the follower waits for such a server."""


def create_run(
    plan: LaunchPlan, target: Target, fill: Callable[[Path], None] | None = None
) -> RunFolder:
    """Makes the run's folder with the plan, what will be submitted, and what ``fill`` writes.

    Raises ``InputError`` before it makes anything, for example for a secret without a value.
    """
    target.check(plan)
    check_folder(Path(plan.run_dir))
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, target.render(plan).shell(), SystemClock().wall(), fill, follows=True)
    if plan.agent is None:
        target.notes.append(f"engine: torchrun: a lost node {describe_loss(plan)}")
    return run


class Follower:
    """Stays with one run from its submission to its outcome, on any target.

    ``stop_reason`` may be set, and ``interrupt`` called, from a signal handler; the loop acts on
    it at its next turn.
    """

    def __init__(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        target: Target,
        console: Console,
        clock: Clock,
        *,
        show_agents: bool = False,
    ) -> None:
        self.stop_reason: Cause | None = None
        self._stop_detail = ""
        self._at_once = ""
        self._run, self._target, self._console, self._clock = run, target, console, clock
        target.clock = clock
        self._driver = target.drive(run, plan, console, clock, self._show_new)
        workers = len(plan.nodes) * plan.nproc_per_node
        self._is_alone = workers == 1
        self._tails = RunTails(
            run,
            workers_in_consoles=target.traits.workers_on_consoles,
            agents=show_agents,
            keeps_returns=console.keeps_returns,
            copies=console.copies_stdout and self._is_alone,
        )
        self._ledgers = LedgerTails(run)
        self._attempt = 0
        """The newest attempt of workers that has said anything."""
        self._lock = threading.Lock()
        """Held while output is shown: as the run ends, another thread shows it."""
        self._failing_since: float | None = None
        self._stood_s = 0.0
        """How long this process was stopped, as far as it was told."""
        self._poll_s = POLL_S
        if target.traits.goes_on_alone:
            # Each turn looks at the files of all workers, which may lie on a file server.
            share = max(1.0, workers / WORKERS_A_TURN)
            self._poll_s = min(LONGEST_POLL_S, POLL_ALONE_S * share)
        self._outcome: Outcome | None = None

    def interrupt(
        self, at_once: str = "", reason: Cause = Cause.INTERRUPTED, detail: str = ""
    ) -> None:
        """Ends the run as Ctrl-C does; ``at_once`` is text on how to end it at once."""
        self.stop_reason, self._at_once, self._stop_detail = reason, at_once, detail
        self._console.is_ending = True

    def follow(
        self,
        on_submitted: Callable[[], None] = lambda: None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Submits the plan and stays until the run has ended and nothing of it is left.

        From ``on_begin`` on, which may raise, whatever is raised is recorded as the run's end.
        Raises ``TargetError`` if the plan could not be submitted (then nothing runs), or if the run
        could not be ended (then there is no outcome).
        """
        submitted = False
        try:
            on_begin()
            self._run.write_launcher()
            if self.stop_reason is not None:
                # Before the submission nothing is there to be ended.
                return self._record_as(Ending(cause=self.stop_reason, detail=self._stop_detail))
            try:
                self._target.submit(self._driver.plan)
            finally:
                self._print_notes()
            submitted = True
            on_submitted()
            return self._finish(self._loop())
        except BaseException as error:
            # The engine died, or Ctrl-C came again, or so: leave no node, record the reason.
            is_over = self._driver.abandon(error, submitted=submitted)
            if is_over and isinstance(error, OSError) and not self._run.is_there():
                return self._record_as(FOLDER_REMOVED)
            if is_over and self._outcome is None:
                self._record_as(judge_error(error))
            if isinstance(error, OSError) and disk.is_full(error):
                raise full_disk(self._run.path) from error
            raise

    def _record_as(self, end: Ending) -> Outcome:
        plan = self._target.as_run(self._driver.plan)
        return write_outcome(self._run, plan, end, self._clock.wall())

    def _loop(self) -> Ending:
        while True:
            self._tell_stood()
            try:
                if (end := self._turn()) is not None:
                    return end
                self._failing_since = None
            except OSError as error:
                self._wait_out_storage(error)
            self._clock.sleep(self._poll_s)

    def _turn(self) -> Ending | None:
        # Act on a signal even if the run's folder cannot be read.
        if self.stop_reason is None:
            self._show_new()
            self._note_way_on()
            if is_stop_requested(self._run):
                self.stop_reason = Cause.STOP_REQUESTED
        if reason := self.stop_reason:
            grace_s = self._driver.plan.stop_grace_s
            self._console.is_ending = True
            self._console.note(f"stopping ({reason}), at most {grace_s} s{self._at_once}")
            return Ending(cause=reason, detail=self._stop_detail)
        if (nodes := take_scale_request(self._run)) is not None:
            self._scale(nodes)
        return self._driver.turn()

    def _tell_stood(self) -> None:
        if (stood_s := self._clock.stood_s) > self._stood_s:
            self._console.note(f"this launcher did not run for {stood_s - self._stood_s:.0f} s")
            self._stood_s = stood_s

    def _scale(self, nodes: int) -> None:
        """Changes the number of nodes; where the target refuses, the run goes on as it is."""
        self._console.note(f"scaling to {count_nodes(nodes)}")
        try:
            self._driver.scale(nodes)
        except LauncherError as error:
            self._console.note(f"not scaled: {error.what}")

    def _wait_out_storage(self, error: OSError) -> None:
        """Notes an error of the run folder's storage that may pass; raises any other error, and
        also this one after ``STORAGE_LIMIT_S``."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if error.errno not in PASSING or now - self._failing_since > STORAGE_LIMIT_S:
            raise error
        if now == self._failing_since:
            self._console.note(f"{error}; waiting for it, at most {STORAGE_LIMIT_S:g} s")

    def _finish(self, end: Ending) -> Outcome:
        try:
            stop_requested = self.stop_reason is not None
            with self._showing(stop_requested=stop_requested):
                self._driver.end(end, stop_requested=stop_requested)
            # Record before the last output: a reader that pauses must not delay the outcome.
            self._outcome = self._record_as(end)
        except TargetError:
            self._close()
            raise
        self._close()
        return self._outcome

    @contextlib.contextmanager
    def _showing(self, *, stop_requested: bool) -> Iterator[None]:
        """Shows what is written while the block waits for the nodes' end.

        ``stop_requested``: a person asked for the end and waits, so report how it goes.
        """
        over, began = threading.Event(), self._clock.monotonic()

        def show() -> None:
            report_at = began + STOPPING_S
            while not over.wait(self._poll_s):
                with contextlib.suppress(OSError):
                    self._show_new()
                if stop_requested and (now := self._clock.monotonic()) >= report_at:
                    report_at = now + STOPPING_S
                    self._console.note(self._describe_stopping(now - began))

        thread = threading.Thread(target=show, name="output", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()  # Ended by ``over``; it waits for no reader.

    def _describe_stopping(self, spent_s: float) -> str:
        plan = self._driver.plan
        folders = (self._run.node_dir(node.node_index, node.incarnation) for node in plan.nodes)
        answering = [files for files in map(StopFiles, folders) if files.training_will_answer()]
        saves = answering and not all(files.has_answer() for files in answering)
        what = "the last checkpoint is being saved" if saves else "waiting for the nodes"
        return f"still stopping, {spent_s:.0f} s of at most {plan.stop_grace_s} s: {what}"

    def _close(self) -> None:
        self._show(self._tails.close(self._console.wait_for_room))
        self._note_way_on()
        self._console.close()
        self._print_notes()

    def _print_notes(self) -> None:
        while self._target.notes:
            self._console.note(self._target.notes.pop(0))

    def _note_way_on(self) -> None:
        """Notes that workers start again, or go on after a loss that was noted before."""
        if self._driver.plan.agent is not None:
            for text in self._ledgers.poll(self._driver.plan):
                self._console.note(text)

    def _show_new(self) -> None:
        with self._lock:
            self._show(self._tails.poll(self._console.has_room))

    def _show(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.worker and output.worker.attempt > self._attempt:
                # Between what the workers said before and what they say now.
                self._attempt = output.worker.attempt
                self._note_way_on()
            block, stream, node_index = output.block, output.stream, output.node_index
            rank = self._rank(output.worker) if output.worker else None
            prefix = "" if output.worker and self._is_alone else prefix_of(node_index, rank)
            if not block.is_progress:
                if rank == 0:
                    self._console.end_progress(stream)
                key = node_index if rank is None else rank
                self._console.show(block, stream=stream, prefix=prefix, colour_key=key)
            elif rank == 0:
                self._console.progress(block.data.decode(), stream=stream, prefix=prefix)

    def _rank(self, worker: WorkerLog) -> int:
        plan, live, node_index = self._driver.plan, self._driver.live, worker.node_index
        if not plan.is_elastic or node_index not in live:
            live = tuple(node.node_index for node in plan.nodes)
        # The rendezvous orders nodes by index.
        return worker.rank_on(sorted(live).index(node_index), plan.nproc_per_node)


def write_outcome(run: RunFolder, plan: LaunchPlan, observed: Ending, now: float) -> Outcome:
    """Folds what is known of an ended run into its ``outcome.json``. Idempotent."""
    has_failed = observed.cause.state is RunState.FAILED
    failure = read_report(run, plan) if has_failed else None
    nodes = read_node_outcomes(run, plan) if plan.agent is not None else ()
    first, limit = failure.first if failure else None, plan.resources.memory_bytes
    end = judge_run(observed, nodes, first, limit)
    detail, causes = plan.tell_outside(end.detail), {node.cause for node in nodes}
    is_here = Path(plan.outside(plan.nodes[0].log_dir)).is_relative_to(plan.run_dir)
    if plan.agent and is_here and end.cause is Cause.DISK_FULL and end.cause not in causes:
        # The nodes write into the run's folder, and its disk had no room for a node's own report.
        detail = f"{detail}; {disk.describe(detail, run.path)}"
    finished_at = end.finished_at or now
    started_again = sum(node.incarnation - plan.attempt for node in plan.nodes)
    outcome = Outcome(
        cause=end.cause,
        detail=detail,
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.target,
        attempts=plan.attempt + 1,
        # A removed folder has no time of submission.
        started_at=run.submitted_at() or finished_at,
        finished_at=finished_at,
        metrics=run.read_metrics(plan),
        failure=failure,
        checkpoint_dir=plan.checkpoint_dir,
        torch_version=plan.torch_version,
        restarts=read_restarts(run) if plan.agent is not None else {},
        heals=read_heals(run, plan),
        replaced_nodes=max(0, started_again - count_returned(run)),
    )
    stop_looks = run.path.glob(f"{protocol.NODES_DIR}/*/*/{protocol.LOOKS_DIR}/stop-*")
    if run.path.exists() and (has_failed or any(stop_looks)):
        outcome = replace(outcome, verdict=_judge(run, outcome))
    # An outcome that cannot be written is returned all the same.
    with contextlib.suppress(OSError):
        if run.path.exists():
            run.write_outcome(outcome)
    return outcome


def _judge(run: RunFolder, outcome: Outcome) -> str:
    try:
        # Imported late: only a failed run needs these modules, and only at its end.
        from launcher.verdict.evidence import read_run
        from launcher.verdict.verdict import OF_STOP, decide_verdict, render_line

        verdict = decide_verdict(read_run(run, outcome))
        is_stop = outcome.state == RunState.STOPPED.value and verdict.cause in OF_STOP
        return "" if is_stop else render_line(verdict)
    except Exception as error:
        # Scripts may write anything, but a run's end must be recorded all the same.
        return f"no verdict: {type(error).__name__}: {error}"


def is_out_of_sight(run: RunFolder, target: Target) -> bool:
    """Whether only another machine, or another container, can tell if the run goes on."""
    return run.is_elsewhere and not target.traits.sees_other_machines


def fold(run: RunFolder, target: Target, now: float) -> Outcome | None:
    """The outcome of a run whose launcher is gone; None while a launcher or a node still lives.

    A run that ended well after its launcher died is completed. Idempotent. Raises ``TargetError``.
    """
    outcome = run.read_outcome()
    if outcome is not None or run.launcher_pid() is not None:
        return outcome
    plan = run.read_plan()
    if is_out_of_sight(run, target):
        return None
    if (end := target.find_end(run, plan)) is None:
        return None
    end = judge_found(end, is_stop_requested=is_stop_requested(run))
    return write_outcome(run, target.as_run(plan), end, now)
