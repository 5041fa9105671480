"""Follows a run: observe, decide, act, until there is an outcome."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable

from launcher.agent import disk
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, ExitCode, InputError, TargetError
from launcher.contract.reasons import (
    EXIT_CODE_OF_REASON,
    STATE_OF_REASON,
    NodeState,
    Reason,
    RunState,
)
from launcher.follow import decide
from launcher.follow.console import Console
from launcher.follow.scaling import count_nodes, read_withdrawn, take_request, without
from launcher.follow.tails import Output, RunTails
from launcher.follow.target import Observation, Target
from launcher.plan.launch_plan import LaunchPlan, plan_next_attempt, plan_replacement
from launcher.plan.ranks import node_rank_of
from launcher.plan.torchrun import WorkerLog
from launcher.runs.failure import read_report, refine_by_first
from launcher.runs.folder import RunFolder, full_disk
from launcher.runs.node_outcomes import read_outcomes_of, read_restarts, refine_reason
from launcher.runs.outcome import Outcome

POLL_S = 0.1
STOP_RUN_FILE = protocol.STOP_RUN_FILE
FOLDER_REMOVED = "its folder was removed while it ran"
FOLDER_LIMIT_S = 3.0
"""How long the run's folder may be away, as in a hiccup of a file server."""


class Follower:
    """Drives one run from its submission to its outcome.

    ``stop_reason`` may be set from a signal handler; the loop acts on it at its next turn.
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
        self.stop_reason: Reason | None = None
        self._run, self._plan, self._target = run, plan, target
        self._console, self._clock = console, clock
        self._tails = RunTails(run, agents=show_agents, keeps_returns=console.keeps_returns)
        self._workers = len(plan.nodes) * plan.nodes[0].nproc_per_node
        self._outcome: Outcome | None = None
        self._replaced: Counter[int] = Counter()
        self._replaced_at: dict[int, float] = {}
        self._live: tuple[int, ...] = tuple(node.node_index for node in plan.nodes)
        self._withdrawn: frozenset[int] = frozenset()
        self._first_exit_at: float | None = None
        self._folder_lost_at: float | None = None
        self._full_since: float | None = None
        self._ended: frozenset[int] = frozenset()

    def follow(self, on_submitted: Callable[[], None] = lambda: None) -> Outcome:
        """Submits the plan and stays until the run has ended and nothing of it is left.

        Raises ``TargetError`` where it could not be submitted; nothing runs then.
        """
        self._run.write_launcher()
        try:
            self._target.submit(self._plan)
            on_submitted()
            return self._finish(*self._loop())
        except BaseException as error:
            # Bad input, an engine that died, a second Ctrl-C: nothing may be left, nor be unsaid.
            with contextlib.suppress(TargetError):
                self._target.stop(self._run.run_id, 0)
            if isinstance(error, OSError) and not self._run.is_there():
                return self._record_as(Reason.STOP_REQUESTED, FOLDER_REMOVED)
            if self._outcome is None:
                self._record(error)
            if isinstance(error, OSError) and disk.is_full(error):
                raise full_disk(self._run.path) from error
            raise

    def _record(self, error: BaseException) -> None:
        reasons = {
            TargetError: Reason.TARGET_UNREACHABLE,
            InputError: Reason.BAD_INPUT,
            KeyboardInterrupt: Reason.INTERRUPTED,
            DiskFullError: Reason.DISK_FULL,
        }
        reason = reasons.get(type(error), Reason.LAUNCHER_LOST)
        if disk.is_full(error):
            reason = Reason.DISK_FULL
        detail = str(error).splitlines()[0] if str(error) else ""
        self._record_as(reason, detail)

    def _record_as(self, reason: Reason, detail: str) -> Outcome:
        return write_outcome(self._run, self._plan, reason, detail, self._clock.wall())

    def _loop(self) -> tuple[Reason, str]:
        while True:
            self._show(self._tails.poll(self._console.has_room))
            if reason := self._asked_to_stop():
                self._console.note(
                    f"stopping ({reason.value}), at most {self._plan.stop_grace_s} s"
                )
                return reason, ""
            if self._has_lost_folder():
                self._console.note(f"stopping: {self._run.path} was removed")
                return Reason.STOP_REQUESTED, FOLDER_REMOVED
            if (nodes := take_request(self._run)) is not None:
                self._scale(nodes)
            observation = without(self._target.observe(self._plan), self._withdrawn)
            action = self._decide(observation)
            if self._starts_now(action) and not self._has_room():
                if told := self._wait_for_room(observation):
                    return Reason.DISK_FULL, told
                continue
            match action:
                case decide.EndRun(reason=reason, detail=detail):
                    return reason, detail
                case decide.Replace(node_index=index, why=why) if self._may_replace(index):
                    self._replace(index, why)
                case decide.Restart(why=why, left=left):
                    self._restart(why, left)
                case decide.Wait() | decide.Replace():
                    self._clock.sleep(POLL_S)

    def _starts_now(self, action: decide.Action) -> bool:
        if isinstance(action, decide.Replace):
            return self._may_replace(action.node_index)
        return isinstance(action, decide.Restart)

    def _has_room(self) -> bool:
        """Whether a start can be recorded: what is on a full disk is neither read nor written."""
        if not disk.has_room(self._run.path):
            return False
        self._full_since = None
        return True

    def _wait_for_room(self, observation: Observation) -> str:
        """Which disk is full, once it has been waited for; a node may have done so already."""
        now, agent = self._clock.monotonic(), self._plan.agent
        waited = any(node.exit_code == ExitCode.DISK_FULL for node in observation.nodes)
        limit_s = 0.0 if waited or agent is None else agent.disk_free_limit_s
        if self._full_since is None:
            self._full_since = now
            if limit_s:
                told = disk.describe(self._run.path, self._run.path)
                self._console.note(f"{told}; waiting for room, at most {limit_s:g} s")
        if now - self._full_since >= limit_s:
            return disk.describe(self._run.path, self._run.path)
        self._clock.sleep(POLL_S)
        return ""

    def _decide(self, observation: Observation) -> decide.Action:
        running = (NodeState.RUNNING, NodeState.PENDING)
        self._live = tuple(n.node_index for n in observation.nodes if n.state in running)
        now = self._clock.monotonic()
        ended = frozenset(node.node_index for node in observation.nodes) - {*self._live}
        # Agents hold a run together with some nodes away for good: what ends later is new.
        is_new = self._plan.agent is not None and ended != self._ended
        if not ended:
            self._first_exit_at = None
        elif self._first_exit_at is None or is_new:
            self._first_exit_at = now
        self._ended = ended
        return decide.decide_action(
            self._plan,
            observation,
            replaced=self._replaced,
            since_first_exit_s=0.0 if self._first_exit_at is None else now - self._first_exit_at,
            working=self._working() if ended else frozenset(),
            left_early=self._left_early() if ended and self._live else frozenset(),
        )

    def _left_early(self) -> frozenset[int]:
        """The nodes that finished, and were stopped or lost the store before the run was over."""
        told = read_outcomes_of(self._run, self._plan)
        return frozenset(o.node_index for o in told if o.detail == protocol.OTHERS_GO_ON)

    def _working(self) -> frozenset[int]:
        """The nodes whose present incarnation has started workers."""
        incarnations = {node.node_index: node.incarnation for node in self._plan.nodes}
        logs = self._run.worker_logs()
        return frozenset(
            log.node_index for log in logs if incarnations.get(log.node_index) == log.incarnation
        )

    def _asked_to_stop(self) -> Reason | None:
        if self.stop_reason is None and (self._run.path / STOP_RUN_FILE).exists():
            self.stop_reason = Reason.STOP_REQUESTED
        return self.stop_reason

    def _has_lost_folder(self) -> bool:
        """Whether somebody removed the run's folder: no stop and no status reaches it any more."""
        if self._run.is_there():
            self._folder_lost_at = None
            return False
        now = self._clock.monotonic()
        if self._folder_lost_at is None:
            self._folder_lost_at = now
        return now - self._folder_lost_at > FOLDER_LIMIT_S

    def _scale(self, nodes: int) -> None:
        """Nodes of the highest indices go first, and come back as later incarnations."""
        beyond = frozenset(range(nodes, len(self._plan.nodes)))
        go, come = beyond - self._withdrawn, self._withdrawn - beyond
        self._withdrawn = beyond
        self._console.note(f"scaling to {count_nodes(nodes)}")
        if go:
            self._target.stop_nodes(self._run.run_id, tuple(go), self._plan.stop_grace_s)
        for index in sorted(come):
            self._set_plan(plan_replacement(self._plan, index))
        if come:
            self._target.submit(self._plan, tuple(come))

    def _may_replace(self, node_index: int) -> bool:
        pause_s = decide.pause_before_replacing_s(self._replaced[node_index])
        return self._clock.monotonic() >= self._replaced_at.get(node_index, float("-inf")) + pause_s

    def _replace(self, node_index: int, why: str) -> None:
        enough = len(self._live) >= self._plan.nodes[0].min_nodes
        others = "go on" if enough else "wait for it"
        self._console.note(f"{why}; replacing it, the others {others}")
        self._replaced[node_index] += 1
        self._replaced_at[node_index] = self._clock.monotonic()
        self._target.collect(self._plan)
        self._set_plan(plan_replacement(self._plan, node_index))
        self._target.submit(self._plan, (node_index,))

    def _restart(self, why: str, left: int) -> None:
        self._console.note(f"{why}; starting all nodes again ({left} restarts left)")
        self._target.stop(self._run.run_id, self._plan.stop_grace_s)
        self._show(self._tails.poll(self._console.has_room))
        self._console.end_progress()
        self._set_plan(plan_next_attempt(self._plan))
        self._replaced.clear()
        self._first_exit_at = None
        wanted = (node.node_index for node in self._plan.nodes)
        self._target.submit(self._plan, tuple(i for i in wanted if i not in self._withdrawn))

    def _set_plan(self, plan: LaunchPlan) -> None:
        self._run.write_plan(plan, self._target.render(plan).shell())
        self._plan = plan

    def _finish(self, reason: Reason, detail: str) -> Outcome:
        grace_s = 0 if STATE_OF_REASON[reason] is RunState.SUCCEEDED else self._plan.stop_grace_s
        with contextlib.suppress(TargetError):
            # An engine that died meanwhile must not hide how the run ended.
            self._target.stop(self._run.run_id, grace_s)
        # Before the last output: a reader that pauses must not hide that the run has ended.
        self._outcome = self._record_as(reason, detail)
        self._show(self._tails.close(self._console.wait_for_room))
        self._console.close()
        while self._target.notes:
            self._console.note(self._target.notes.pop(0))
        return self._outcome

    def _show(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.worker is None:
                prefix = f"[{output.node_index}/agent]"
                self._console.show(
                    output.block, stream="stderr", prefix=prefix, colour_key=output.node_index
                )
            else:
                self._show_worker(output, self._rank(output.worker))

    def _show_worker(self, output: Output, rank: int) -> None:
        prefix = f"[{output.node_index}/{rank}]" if self._workers > 1 else ""
        if output.block.is_progress:
            if rank == 0:
                text = output.block.data.decode()
                self._console.progress(text, stream=output.stream, prefix=prefix)
            return
        if rank == 0:
            self._console.end_progress(output.stream)
        self._console.show(output.block, stream=output.stream, prefix=prefix, colour_key=rank)

    def _rank(self, worker: WorkerLog) -> int:
        node_index = worker.node_index
        live = self._live if self._plan.is_elastic and node_index in self._live else None
        indices = live or tuple(node.node_index for node in self._plan.nodes)
        nproc = self._plan.nodes[0].nproc_per_node
        return worker.rank_on(node_rank_of(node_index, indices), nproc)


def write_outcome(
    run: RunFolder, plan: LaunchPlan, reason: Reason, detail: str, finished_at: float
) -> Outcome:
    """Folds what is known of an ended run into its ``outcome.json``. Idempotent."""
    report = read_report(run, plan) if STATE_OF_REASON[reason] is RunState.FAILED else None
    if plan.agent is not None:
        first_node = report.first.node_index if report and report.first else None
        reason, detail = refine_reason(reason, detail, read_outcomes_of(run, plan), first_node)
    failure = None
    if STATE_OF_REASON[reason] is RunState.FAILED:
        failure = report or read_report(run, plan)
        reason, detail = refine_by_first(reason, detail, failure.first)
    # Where the folder was removed, nobody knows.
    started_at = run.submitted_at() or finished_at
    outcome = Outcome(
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.target,
        state=STATE_OF_REASON[reason].value,
        reason=reason.value,
        exit_code=int(EXIT_CODE_OF_REASON[reason]),
        detail=detail,
        attempts=plan.attempt + 1,
        started_at=started_at,
        finished_at=finished_at,
        duration_s=round(finished_at - started_at, 3),
        metrics=run.read_metrics(),
        failure=failure,
        checkpoint_dir=plan.checkpoint_dir,
        torch_version=plan.torch_version,
        restarts=read_restarts(run) if plan.agent is not None else {},
    )
    # Whoever waits for it is told all the same. A folder that was removed is not made anew.
    with contextlib.suppress(OSError):
        if run.path.exists():
            run.write_outcome(outcome)
    return outcome


def fold(run: RunFolder, target: Target, now: float) -> Outcome | None:
    """The outcome of a run whose launcher is gone; None while a launcher or a node still lives.

    Reads what the target still holds, so that a run which ended well after its launcher died
    counts as completed. Idempotent.
    """
    outcome = run.read_outcome()
    if outcome is not None or run.launcher_pid() is not None:
        return outcome
    plan = run.read_plan()
    if any(live.run_id == run.run_id and live.running_nodes for live in target.live_runs()):
        return None
    observation = without(target.observe(plan), read_withdrawn(run, plan))
    if any(n.state in (NodeState.RUNNING, NodeState.PENDING) for n in observation.nodes):
        return None
    target.collect(plan)
    codes = [node.exit_code for node in observation.nodes]
    if all(code == 0 for code in codes):
        reason, detail = Reason.COMPLETED, "found after its launcher had gone"
    elif any(node.detail == protocol.LAUNCHER_GONE for node in observation.nodes):
        reason, detail = Reason.LAUNCHER_LOST, "its launcher died, and its hosts ended it"
    elif any(code is not None for code in codes):
        action = decide.decide_action(plan, observation, replaced={}, since_first_exit_s=1e9)
        done = isinstance(action, decide.EndRun)
        reason = action.reason if done else Reason.LAUNCHER_LOST  # type: ignore[union-attr]
        detail = "found after its launcher had gone"
    else:
        reason, detail = Reason.LAUNCHER_LOST, "its launcher died, and its processes with it"
    with contextlib.suppress(TargetError):
        target.stop(run.run_id, 0)
    return write_outcome(run, plan, reason, detail, now)
