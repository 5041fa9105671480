"""Follows a run on a cluster, whose controllers start and replace its pods: watch, tell, fold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from launcher.clock import Clock
from launcher.console import Console
from launcher.errors import DiskFullError, InputError, LauncherError, TargetError, name_exit_code
from launcher.follow import STOP_REQUEST_FILE, write_outcome
from launcher.plan import LaunchPlan
from launcher.pod_states import JobEnd, PodView, describe_trouble, reason_of_end
from launcher.runs import Outcome, RunFolder
from launcher.scaling import take_request
from launcher.state import NodeState, Reason
from launcher.stopping import KEEP
from launcher.tails import Output, RunTails
from launcher.targets.kubernetes import KubernetesTarget

ENDED_UNSEEN = "found after its launcher had gone"
POLL_S = 0.3
READ_END_S = 2.0
"""Between two looks at the job's object; its pods are watched."""


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
        self._told: dict[str, str] = {}
        self._silent = False

    def follow(self, on_submitted: Callable[[], None] = lambda: None) -> Outcome:
        """Submits the plan and stays until the run has ended.

        Raises ``TargetError`` or ``InputError`` where it could not be submitted; nothing is left
        of it then.
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
        on_submitted()
        return self._finish(*self._loop())

    def _loop(self) -> tuple[Reason, str]:
        watch = self._target.follow(self._plan)
        next_look_at = float("-inf")
        while True:
            self._target.follow_logs(self._plan)
            self._tell(watch.pods(), watch.error)
            self._show(self._tails.poll(self._console.has_room))
            if reason := self._asked_to_stop():
                note = f"stopping ({reason.value}), at most {self._plan.stop_grace_s} s"
                self._console.note(note)
                return reason, ""
            if (nodes := take_request(self._run)) is not None:
                self._console.note(f"scaling to {nodes} nodes")
                self._target.scale(self._plan, nodes)
            if self._clock.monotonic() >= next_look_at:
                if (end := self._read_end()) is not None:
                    return reason_of_end(end, self._read_pods())
                next_look_at = self._clock.monotonic() + READ_END_S
            self._clock.sleep(POLL_S)

    def _read_end(self) -> JobEnd | None:
        with contextlib.suppress(TargetError):
            return self._target.read_end(self._plan)
        return None

    def _read_pods(self) -> tuple[PodView, ...]:
        with contextlib.suppress(TargetError):
            return self._target.read_pods(self._plan)
        return self._target.follow(self._plan).pods()

    def _asked_to_stop(self) -> Reason | None:
        if self.stop_reason is None and (self._run.path / STOP_REQUEST_FILE).exists():
            self.stop_reason = Reason.STOP_REQUESTED
        return self.stop_reason

    def _tell(self, pods: tuple[PodView, ...], error: TargetError | None) -> None:
        """What changed about the pods since the last turn."""
        if (error is not None) != self._silent:
            self._silent = error is not None
            told = f"{error.what}; trying again" if error else "the cluster answers again"
            self._console.note(told)
        for pod in pods:
            if pod.node_index is None:
                continue
            word = describe_trouble(pod) if pod.trouble else self._word(pod)
            if self._told.get(pod.uid) != word:
                self._told[pod.uid] = word
                self._console.note(word)

    def _word(self, pod: PodView) -> str:
        ended = "" if pod.exit_code is None else f" with {name_exit_code(pod.exit_code)}"
        again = f" (restart {pod.restarts})" if pod.restarts else ""
        states = {NodeState.PENDING: "is starting", NodeState.RUNNING: "runs"}
        return f"{pod.name} {states.get(pod.state, 'ended')}{ended}{again}"

    def _show(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.worker is None:
                key, prefix = output.node_index, f"[{output.node_index}/agent]"
            else:
                nproc = self._plan.nodes[0].nproc_per_node
                key = output.worker.rank_on(output.node_index, nproc)
                prefix = f"[{output.node_index}/{key}]" if self._workers > 1 else ""
            self._console.show(output.block, stream=output.stream, prefix=prefix, colour_key=key)

    def _finish(self, reason: Reason, detail: str) -> Outcome:
        pods = self._read_pods()
        with contextlib.suppress(TargetError):
            if self.stop_reason is None:
                self._target.collect(self._plan)
            self._remove(reason)
        self._tell(pods, None)
        # Before the last output: a reader that pauses must not hide that the run has ended.
        outcome = self._write(reason, detail)
        self._show(self._tails.close(self._console.wait_for_room))
        self._console.close()
        return outcome

    def _remove(self, reason: Reason) -> None:
        """The job's object goes, unless there is something to be learned from it."""
        request = self._run.path / STOP_REQUEST_FILE
        if request.exists() and request.read_text() == KEEP:
            self._target.suspend(self._plan)
        elif reason is Reason.COMPLETED or self.stop_reason is not None:
            self._target.stop(self._run.run_id, self._plan.stop_grace_s)
        else:
            run_id = self._run.run_id
            self._console.note(f"kept for kubectl describe; launcher stop {run_id} removes it")
        if self.stop_reason is not None:
            self._target.collect(self._plan)

    def _write(self, reason: Reason, detail: str) -> Outcome:
        plan = self._target.as_run(self._plan)
        return write_outcome(self._run, plan, reason, detail, self._clock.wall())


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
        if reason is Reason.COMPLETED:
            target.stop(run.run_id, 0)
    return write_outcome(run, target.as_run(plan), reason, detail or ENDED_UNSEEN, now)


def bring_logs(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, clock: Clock
) -> Iterator[Outcome | None]:
    """Brings the output of a run that no launcher follows, a turn at a time, until it has ended.

    A cluster that stops answering is waited for; ``TargetError`` is raised by the first turn alone.
    """
    target.read_pods(plan)
    next_look_at = float("-inf")
    while (outcome := run.read_outcome()) is None:
        target.follow_logs(plan)
        if clock.monotonic() >= next_look_at:
            with contextlib.suppress(TargetError):
                outcome = fold_cluster_run(run, plan, target, clock.wall())
            next_look_at = clock.monotonic() + READ_END_S
        yield outcome
