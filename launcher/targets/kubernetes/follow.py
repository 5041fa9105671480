"""Follows a run on a cluster: what is printed, whether its job is deleted or kept at the end, how a
silent cluster is waited for."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.contract import typed
from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.waits import RETRY_S
from launcher.follow.console import Console
from launcher.follow.endings import Part, judge_part, judge_parts
from launcher.follow.loop import fold
from launcher.follow.requests import is_to_be_kept, read_withdrawn
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import tell_moment
from launcher.targets.kubernetes.api.cluster import ANSWER_LIMIT_S
from launcher.targets.kubernetes.api.refusals import FORBIDDEN, ApiError
from launcher.targets.kubernetes.cluster_job import LEAST_TRIES_S, ClusterJob, MayRunError
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pods.collector import ENDINGS_LIMIT_S
from launcher.targets.kubernetes.pods.logs import REFUSED
from launcher.targets.kubernetes.pods.progress import MissingPods, PodProgress, StartLimit
from launcher.targets.kubernetes.pods.states import find_parts, newest_of_each

if TYPE_CHECKING:
    from launcher.targets.kubernetes.target import KubernetesTarget

READ_END_S = 2.0
"""Seconds between two looks at the job's object; its pods are watched."""
TRY_S = 10.0
"""How long one try to end the job may take: a connection may hang while the server answers."""


class _JobCheck(threading.Thread):
    """One look at the job, beside the loop: a stop must not wait for a server that hangs."""

    def __init__(self, job: ClusterJob, reasons: Iterator[str]) -> None:
        """``reasons`` say why pods are missing; to give the next may ask the cluster."""
        super().__init__(daemon=True)
        self._job, self._reasons = job, reasons
        self.end: Part | None = None
        """How the job ended; None while it goes on, or if the cluster does not say."""
        self.error: TargetError | None = None
        """Why the cluster does not say."""
        self.lines: list[str] = []
        """Why pods are missing."""

    def run(self) -> None:
        try:
            self.end = self._job.read_end()
            if self.end is None:
                self.lines += self._reasons
        except TargetError as error:
            self.error = error


class ClusterDriver:
    """A ``Driver`` that watches the pods of a run.

    A cluster that stops answering is waited for: the run goes on without this process.
    """

    live: tuple[int, ...] = ()

    def __init__(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        job: ClusterJob,
        console: Console,
        clock: Clock,
    ) -> None:
        self.plan = plan
        self._run, self._job, self._console, self._clock = run, job, console, clock
        self._pods = job.pods
        pods = PodSettings.of(plan)
        kubectl = job.cluster.kubectl_there
        self._progress = PodProgress(pods.start_limit_s, kubectl)
        self._limit = StartLimit(pods.start_limit_s, plan.min_nodes, kubectl)
        self._missing = MissingPods(job)
        self._next_check_at = float("-inf")
        self._check: _JobCheck | None = None
        self._check_error: TargetError | None = None
        self._ends_it = False
        """Whether to delete the job without a request: its result is final."""
        self._is_hurried = False
        self._is_done = False
        """Whether the training has ended well."""
        self._is_over = False
        """Whether the job has ended, or the cluster has accepted a request to end it."""
        self._silent = False
        self._reported: set[str] = set()

    def turn(self) -> Ending | None:
        """As ``Driver.turn``. Starts no pods: the cluster's controllers do."""
        watch = self._pods.watch
        self._pods.follow_logs()
        self._print_news()
        now = self._clock.monotonic()
        if watch.error is None and (
            part := self._limit.find(watch.all_pods(), now, self._missing.refused)
        ):
            self._console.note(f"ending the run: {part.words}")
            self._ends_it = True
            return judge_part(part)
        if self._check is None:
            if now < self._next_check_at:
                return None
            reasons = self._missing.find_reasons(watch.pods(), self._wanted(), now)
            self._check = _JobCheck(self._job, reasons)
            self._check.start()
        self._check.join(0.1)
        if self._check.is_alive():
            return None
        check, self._check = self._check, None
        self._check_error = check.error
        self._next_check_at = self._clock.monotonic() + READ_END_S
        runs = {pod.node_index for pod in watch.pods() if pod.state is NodeState.RUNNING}
        for line in check.lines:
            self._console.note(line)
            node = min(self._wanted() - runs, default=0)
            tell_moment(self._run, node, 0, at=self._clock.wall(), text=line)
        if (end := check.end) is not None:
            # Each node's last pod, even if it was deleted since.
            with contextlib.suppress(TargetError):
                watch.refresh()
            watch.wait_endings(ENDINGS_LIMIT_S)
            pods = newest_of_each(watch.all_pods())
            well = {index for index, pod in pods.items() if pod.exit_code == 0}
            if end.exit_code is None and self._wanted() <= well:
                # Deleted once it was done, as by a time to live.
                end = Part(exit_code=0)
            self._is_over, self._is_done = True, end.exit_code == 0
            self._ends_it = not end.exit_code
            return judge_parts(find_parts(end, pods.values(), self._job.cluster.kubectl_there))
        least = self.plan.min_nodes
        for line in self._progress.describe_losses(
            watch.all_pods(), watch.pods(), self._wanted(), least
        ):
            self._console.note(line)
        return None

    def _wanted(self) -> frozenset[int]:
        """The nodes that the run is meant to have now."""
        planned = frozenset(node.node_index for node in self.plan.nodes)
        return planned - read_withdrawn(self._run, self.plan)

    def scale(self, nodes: int) -> None:
        """As ``Driver.scale``; the cluster's controllers start or end the pods later."""
        self._job.scale(nodes)

    def _print_news(self) -> None:
        """Prints what is new since the last turn: cluster, right to logs, pods."""
        error = self._pods.watch.error or self._check_error
        if (error is not None) != self._silent:
            self._silent = error is not None
            # Only a person can help against a refusal.
            fix = f"; {error.hint}" if isinstance(error, ApiError) and error.hint else ""
            text = f"{error.what}; trying again{fix}" if error else "the cluster answers again"
            self._console.note(text)
        lasting = list(self._pods.find_losses())
        if refusal := self._pods.refusal:
            lasting.append(f"no output is shown: {refusal.what}; {refusal.hint}")
        news = [line for line in lasting if line not in self._reported]
        self._reported.update(news)
        for line in (*news, *self._progress.describe_changes(self._pods.watch.pods())):
            self._console.note(line)

    # -- the end ---------------------------------------------------------------------------------

    def end(self, why: Ending, *, stop_requested: bool) -> None:
        """As ``Driver.end``: a failed job's object stays for kubectl describe."""
        try:
            if not stop_requested:
                self._collect()
            if is_to_be_kept(self._run):
                self._insist(self._job.suspend, keep=True)
            elif self._ends_it or stop_requested:
                self._delete()
            else:
                look, end = self._job.render_looking(), typed.command("stop", self._run.run_id)
                self._console.note(f"kept for {look}; {end} removes it")
            if stop_requested:
                self._collect()
        finally:
            self._print_news()

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """As ``Driver.abandon``: a job that was made goes on without a launcher.

        After an interrupt it deletes the job, or raises an error with the command to type.
        """
        if not submitted:
            is_known = isinstance(error, LauncherError | KeyboardInterrupt)
            return is_known and not isinstance(error, MayRunError)
        if isinstance(error, KeyboardInterrupt) and not self._is_over:
            self._is_hurried = True
            self._delete()
        return isinstance(error, KeyboardInterrupt)

    def _collect(self) -> None:
        with contextlib.suppress(TargetError, KeyboardInterrupt):
            self._pods.collect()

    def _delete(self) -> None:
        try:
            self._insist(self._job.remove)
        except TargetError as error:
            if not self._is_over:
                raise
            self._console.note(f"the job has ended, but its object is left: {error.hint}")
            return
        try:
            self._job.wait_gone(self.plan.stop_grace_s, is_done=self._is_done)
        except TargetError as error:
            self._console.note(f"the job is deleted, but {error.what}; {error.hint}")
        except KeyboardInterrupt:
            self._console.note("the job is deleted; its pods end by themselves")

    def _insist(self, end: Callable[[], None], *, keep: bool = False) -> None:
        """Tries to end the job until the grace is over: a cluster may be away for a while.

        Raises ``TargetError`` with the command to type if the job runs on.
        """
        deadline = self._clock.monotonic() + max(self.plan.stop_grace_s, LEAST_TRIES_S)
        why = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                left_s = max(0.1, deadline - self._clock.monotonic())
                try:
                    with self._job.cluster.answers_within(min(TRY_S, left_s)):
                        end()
                    self._is_over = True
                    return
                except TargetError as error:
                    is_repeated = why == error.what
                    why = error.what
                    is_final = isinstance(error, ApiError) and error.status == FORBIDDEN
                    is_over = self._is_hurried or self._clock.monotonic() >= deadline
                    if is_final or is_over:
                        break
                    if not is_repeated:
                        self._console.note(f"{why}; trying again")
                self._clock.sleep(RETRY_S)
        what = f"STILL RUNNING: {self._run.run_id}: {why}"
        raise TargetError(what, self._job.render_by_hand(keep=keep))


# -- a run that no launcher follows --------------------------------------------------------------


def find_end(run: RunFolder, job: ClusterJob) -> Ending | None:
    """As ``Target.find_end``, by the job's own object: pods may be away for a while.

    None also while another process brings the last output: that process folds the run.
    """
    with job.cluster.answers_within(ANSWER_LIMIT_S):
        end = job.read_end()
    if end is None or not job.pods.writes_output():
        return None
    judged = judge_parts(find_parts(end, job.pods.read_pods(), job.cluster.kubectl_there))
    if end.cause is Cause.STOP_REQUESTED and run.launcher_death():
        with contextlib.suppress(TargetError):
            job.remove_left()
    with contextlib.suppress(TargetError):
        job.pods.collect()
        if judged.cause is Cause.COMPLETED and not run.is_borrowed:
            job.remove()
            job.wait_gone(0, is_done=True)
    is_known = run.is_borrowed and end.ended_at < math.inf
    return replace(judged, finished_at=end.ended_at if is_known else 0.0)


def bring_output(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, clock: Clock, *, follow: bool
) -> Iterator[None]:
    """As ``Target.bring_output``; with ``follow``, until the run has its outcome.

    Waits for a cluster that stops answering: only the first turn raises ``TargetError``. Raises
    ``ApiError`` also later, if this user is refused.
    """
    job = target.job(plan)
    pods = job.pods
    if not follow:
        job.read_object()
        pods.read_logs()
        return
    pods.read_pods()
    next_check_at = float("-inf")
    while run.read_outcome() is None:
        pods.follow_logs()
        if pods.refusal is not None:
            raise pods.refusal
        if clock.monotonic() >= next_check_at:
            try:
                fold(run, target, clock.wall())
            except ApiError as error:
                if error.status in REFUSED:
                    raise
            except TargetError:
                pass
            next_check_at = clock.monotonic() + READ_END_S
        yield
    if pods.refusal is not None:
        raise pods.refusal  # also if the run had ended before the first answer
