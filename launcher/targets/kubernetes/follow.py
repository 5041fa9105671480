"""Follows a run on a cluster, whose controllers start and replace its pods: watch, tell, fold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from launcher.api.stopping import KEEP
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, InputError, LauncherError, TargetError
from launcher.contract.reasons import Reason
from launcher.follow.console import Console
from launcher.follow.loop import STOP_RUN_FILE, write_outcome
from launcher.follow.scaling import read_withdrawn, take_request
from launcher.follow.tails import Output, RunTails
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from launcher.targets.kubernetes.api import ApiError
from launcher.targets.kubernetes.pod_notes import PodNotes, StartLimit, same_words
from launcher.targets.kubernetes.pod_states import (
    DELETED,
    JobEnd,
    PodView,
    newest_of_each,
    reason_of_end,
)
from launcher.targets.kubernetes.render_pod import pods_of
from launcher.targets.kubernetes.target import ENDINGS_LIMIT_S, KubernetesTarget
from launcher.targets.kubernetes.watch import PodWatch

ENDED_UNSEEN = "found after its launcher had gone"
POLL_S = 0.3
READ_END_S = 2.0
"""Between two looks at the job's object; its pods are watched."""
RETRY_S = 1.0
LEAST_TRIES_S = 5.0
"""How long a job is tried to be ended where its grace is shorter."""
MISSING_S = 3.0
"""How long pods may be missing before the job's events are looked at."""
NEWS_S = 10.0
"""Between two looks at them where they have told nothing new for a while."""
SILENT_S = 10.0
"""How long there may be no pod and no word about it."""
FORBIDDEN = 403


class ClusterFollower:
    """Stays with one run from its submission to its outcome.

    ``stop_reason`` may be set from a signal handler; the loop acts on it at its next turn. A
    cluster that stops answering is waited for: the run goes on without this process.
    """

    def __init__(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        target: KubernetesTarget,
        console: Console,
        clock: Clock,
        *,
        show_agents: bool = False,
    ) -> None:
        self.stop_reason: Reason | None = None
        self._run, self._plan, self._target = run, plan, target
        self._console, self._clock = console, clock
        self._tails = RunTails(run, workers_in_consoles=True, agents=show_agents)
        self._workers = len(plan.nodes) * plan.nodes[0].nproc_per_node
        limit_s = pods_of(plan).start_limit_s
        self._notes = PodNotes(limit_s)
        self._limit = StartLimit(limit_s, plan.nodes[0].min_nodes)
        self._news = MissingPods(target, plan)
        self._ends_it = False
        """Whether the job is to go: it was asked for, or nothing more can come of it."""
        self._is_hurried = False
        self._is_over = False
        """Whether the job has ended, or the cluster has taken our word that it shall."""
        self._silent = False
        self._has_no_logs = False
        self._losses: set[str] = set()

    def follow(self, on_submitted: Callable[[], None] = lambda: None) -> Outcome:
        """Submits the plan and stays until the run has ended.

        Raises ``TargetError`` or ``InputError`` where it could not be submitted; nothing is left
        of it then. Raises ``TargetError`` without an outcome where the job could not be ended.
        """
        self._run.write_launcher()
        try:
            self._target.submit(self._plan)
        except LauncherError as error:
            bad_input = isinstance(error, InputError)
            reason = Reason.BAD_INPUT if bad_input else Reason.TARGET_UNREACHABLE
            if isinstance(error, DiskFullError):
                reason = Reason.DISK_FULL
            self._write(reason, error.what)
            raise
        finally:
            self._tell_notes()
        on_submitted()
        try:
            ended = self._loop()
        except KeyboardInterrupt:
            # The second: whatever the first one waits for, the job is to go now.
            self._is_hurried = True
            ended = Reason.INTERRUPTED, ""
        try:
            return self._finish(*ended)
        except KeyboardInterrupt:
            if self._is_over:
                return self._write(*ended)
            raise self._still_running("interrupted") from None

    def _loop(self) -> tuple[Reason, str]:
        watch = self._target.follow(self._plan)
        next_look_at = float("-inf")
        while True:
            self._target.follow_logs(self._plan)
            self._tell(watch)
            self._show(self._tails.poll(self._console.has_room))
            if reason := self._asked_to_stop():
                note = f"stopping ({reason.value}), at most {self._plan.stop_grace_s} s"
                self._console.note(note)
                return reason, ""
            if (nodes := take_request(self._run)) is not None:
                self._scale(nodes)
            now = self._clock.monotonic()
            if watch.error is None and (found := self._limit.judge(watch.seen(), now)):
                self._console.note(f"ending the run: {found[1]}")
                self._ends_it = True
                return found
            if now >= next_look_at:
                if (end := self._read_end()) is not None:
                    self._is_over = True
                    self._ends_it = end.succeeded or end.word == DELETED
                    return reason_of_end(end, self._read_last_pods())
                for line in self._news.read(watch.pods(), self._wanted(), now):
                    self._console.note(line)
                next_look_at = self._clock.monotonic() + READ_END_S
            self._clock.sleep(POLL_S)

    def _wanted(self) -> frozenset[int]:
        """Indices of the nodes that the run is meant to have."""
        planned = frozenset(node.node_index for node in self._plan.nodes)
        return planned - read_withdrawn(self._run, self._plan)

    def _scale(self, nodes: int) -> None:
        self._console.note(f"scaling to {nodes} nodes")
        try:
            self._target.scale(self._plan, nodes)
        except LauncherError as error:
            # The run goes on as it is.
            self._console.note(f"not scaled: {error.what}")

    def _read_end(self) -> JobEnd | None:
        with contextlib.suppress(TargetError):
            return self._target.read_end(self._plan)
        return None

    def _read_last_pods(self) -> tuple[PodView, ...]:
        """Each node's last pod, also where a controller has deleted it since."""
        watch = self._target.follow(self._plan)
        with contextlib.suppress(TargetError):
            watch.refresh()
        watch.wait_endings(ENDINGS_LIMIT_S)
        return tuple(newest_of_each(watch.seen()).values())

    def _asked_to_stop(self) -> Reason | None:
        if self.stop_reason is None and (self._run.path / STOP_RUN_FILE).exists():
            self.stop_reason = Reason.STOP_REQUESTED
        return self.stop_reason

    def _tell(self, watch: PodWatch) -> None:
        """What changed since the last turn about the cluster, the right to logs, the pods."""
        error = watch.error
        if (error is not None) != self._silent:
            self._silent = error is not None
            told = f"{error.what}; trying again" if error else "the cluster answers again"
            self._console.note(told)
        if not self._has_no_logs and (refusal := self._target.find_refusal(self._plan)):
            self._has_no_logs = True
            self._console.note(f"no output is shown: {refusal.what}; {refusal.hint}")
        for line in self._target.find_losses(self._plan):
            if line not in self._losses:
                self._losses.add(line)
                self._console.note(line)
        for line in self._notes.tell(watch.pods()):
            self._console.note(line)

    def _tell_notes(self) -> None:
        while self._target.notes:
            self._console.note(self._target.notes.pop(0))

    def _show(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.worker is None:
                key, prefix = output.node_index, f"[{output.node_index}/agent]"
            else:
                nproc = self._plan.nodes[0].nproc_per_node
                key = output.worker.rank_on(output.node_index, nproc)
                prefix = f"[{output.node_index}/{key}]" if self._workers > 1 else ""
            self._console.show(output.block, stream=output.stream, prefix=prefix, colour_key=key)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, reason: Reason, detail: str) -> Outcome:
        try:
            if self.stop_reason is None:
                self._collect()
            self._remove()
            if self.stop_reason is not None:
                self._collect()
            # Before the last output: a reader that pauses must not hide that the run has ended.
            outcome = self._write(reason, detail)
        finally:
            self._tell(self._target.follow(self._plan))
            self._show(self._tails.close(self._console.wait_for_room))
            self._console.close()
        return outcome

    def _collect(self) -> None:
        with contextlib.suppress(TargetError, KeyboardInterrupt):
            self._target.collect(self._plan)

    def _remove(self) -> None:
        """The job's object goes, unless there is something to be learned from it.

        Raises ``TargetError`` where it cannot be ended and runs on.
        """
        request = self._run.path / STOP_RUN_FILE
        if request.exists() and request.read_text() == KEEP:
            self._insist(self._target.suspend, keep=True)
        elif self._ends_it or self.stop_reason is not None:
            self._delete()
        else:
            run_id = self._run.run_id
            self._console.note(f"kept for kubectl describe; launcher stop {run_id} removes it")

    def _delete(self) -> None:
        try:
            self._insist(self._target.remove)
        except TargetError as error:
            if not self._is_over:
                raise
            self._console.note(f"the job has ended, but its object is left: {error.hint}")
            return
        try:
            self._target.wait_gone(self._plan, self._plan.stop_grace_s)
        except TargetError as error:
            self._console.note(f"the job is deleted, but {error.what}; {error.hint}")
        except KeyboardInterrupt:
            self._console.note("the job is deleted; its pods end by themselves")

    def _insist(self, end: Callable[[LaunchPlan], None], *, keep: bool = False) -> None:
        """Tries to end the job until the grace is over: a cluster may be away for a while.

        Raises ``TargetError`` with the command to type where the job runs on.
        """
        deadline = self._clock.monotonic() + max(self._plan.stop_grace_s, LEAST_TRIES_S)
        why = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                try:
                    end(self._plan)
                    self._is_over = True
                    return
                except TargetError as error:
                    is_told = why == error.what
                    why = error.what
                    is_final = isinstance(error, ApiError) and error.status == FORBIDDEN
                    is_over = self._is_hurried or self._clock.monotonic() >= deadline
                    if is_final or is_over:
                        break
                    if not is_told:
                        self._console.note(f"{why}; trying again")
                self._clock.sleep(RETRY_S)
        raise self._still_running(why, keep=keep)

    def _still_running(self, why: str, *, keep: bool = False) -> TargetError:
        by_hand = self._target.render_by_hand(self._plan, keep=keep)
        return TargetError(f"STILL RUNNING: {self._run.run_id}: {why}", by_hand)

    def _write(self, reason: Reason, detail: str) -> Outcome:
        plan = self._target.as_run(self._plan)
        return write_outcome(self._run, plan, reason, detail, self._clock.wall())


class MissingPods:
    """Asks why pods are missing once they have been for a while, and tells each answer once."""

    def __init__(self, target: KubernetesTarget, plan: LaunchPlan) -> None:
        self._target, self._plan = target, plan
        self._since: float | None = None
        self._next_at = float("-inf")
        self._told: set[str] = set()
        self._any_pod = False

    def read(self, pods: tuple[PodView, ...], wanted: frozenset[int], now: float) -> Iterator[str]:
        """New lines about nodes of ``wanted`` that have no pod; ``now`` is any steady clock's."""
        present = {pod.node_index for pod in pods}
        self._any_pod = self._any_pod or bool(present)
        if wanted <= present:
            self._since = None
            return
        if self._since is None:
            self._since, self._next_at = now, now + MISSING_S
        if now < self._next_at:
            return
        if now - self._since > SILENT_S:
            self._next_at = now + NEWS_S
        with contextlib.suppress(TargetError):
            for line in self._target.read_news(self._plan):
                if same_words(line) not in self._told:
                    self._told.add(same_words(line))
                    yield line
            if not self._told and not self._any_pod and now - self._since >= SILENT_S:
                self._told.add("")
                yield self._target.tell_silence(self._plan)


def fold_cluster_run(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, now: float
) -> Outcome | None:
    """The outcome of a run that no launcher follows; None while its job goes on.

    The job's own object says whether it does: pods may be away for a while. None also while another
    process brings the last output: it folds. Idempotent. Raises ``TargetError``.
    """
    end = target.read_end(plan)
    if end is None or not target.writes_output(plan):
        return None
    reason, detail = reason_of_end(end, target.read_pods(plan))
    with contextlib.suppress(TargetError):
        target.collect(plan)
        if reason is Reason.COMPLETED and not run.is_borrowed:
            target.stop(run.run_id, 0)
    if run.is_borrowed:
        now = target.read_ended_at(plan) or now
    return write_outcome(run, target.as_run(plan), reason, detail or ENDED_UNSEEN, now)


def bring_logs(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, clock: Clock
) -> Iterator[Outcome | None]:
    """Brings the output of a run that no launcher follows, a turn at a time, until it has ended.

    A cluster that stops answering is waited for; ``TargetError`` is raised by the first turn alone,
    ``ApiError`` also where this user may not read logs.
    """
    target.read_pods(plan)
    next_look_at = float("-inf")
    while (outcome := run.read_outcome()) is None:
        target.follow_logs(plan)
        if (refusal := target.find_refusal(plan)) is not None:
            raise refusal
        if clock.monotonic() >= next_look_at:
            with contextlib.suppress(TargetError):
                outcome = fold_cluster_run(run, plan, target, clock.wall())
            next_look_at = clock.monotonic() + READ_END_S
        yield outcome
