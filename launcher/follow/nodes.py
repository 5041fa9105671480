"""Keeps a run going if the launcher itself starts its nodes: replaces them, starts them again,
waits for an engine that is away, tells which are silent, ends a run whose folder is gone.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState, RunState
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending
from launcher.contract.errors import SilentTargetError, TargetError
from launcher.contract.reports.vitals import read_vitals
from launcher.follow import endings
from launcher.follow.console import Console
from launcher.follow.requests import is_stop_requested, read_withdrawn, without
from launcher.follow.target import NodeObservation, Observation, Target
from launcher.plan.launch_plan import LaunchPlan, plan_next_attempt, plan_replacement
from launcher.plan.rendezvous import needs_majority
from launcher.runs.failure import read_node_outcomes
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import SILENT_S, measure_silence, tell_moment

FOLDER_LIMIT_S = 3.0
"""How long the run's folder may be missing, for example while a file server pauses."""
AWAY_LIMIT_S = 120.0
"""How long a target may be away, for example while its engine restarts."""
REPORTED_PAUSE_S = 0.5
"""A longer pause before a node starts again is shown to the person who watches."""


class FolderWatch:
    """Notices that the run's folder was removed: no command can reach the run then."""

    def __init__(self, run: RunFolder, console: Console, clock: Clock) -> None:
        self._run, self._console, self._clock = run, console, clock
        self._lost_at: float | None = None

    def poll(self) -> Ending | None:
        """The end of the run once its folder has been missing for ``FOLDER_LIMIT_S``."""
        if self._run.is_there():
            self._lost_at = None
            return None
        now = self._clock.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at <= FOLDER_LIMIT_S:
            return None
        self._console.note(f"stopping: {self._run.path} was removed")
        return endings.FOLDER_REMOVED


class NodeDriver:
    """A ``Driver`` that replaces lost nodes and restarts failed ones."""

    def __init__(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        target: Target,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.live: tuple[int, ...] = tuple(node.node_index for node in plan.nodes)
        self._run, self._target, self._console, self._clock = run, target, console, clock
        self._show = show
        self._replaced: Counter[int] = Counter()
        self._started_at: dict[int | None, float] = defaultdict(float)
        self._failed_at_once: Counter[int | None] = Counter()
        """How often in a row each node, or all of them (None), was lost soon after its start."""
        self._reported_waits: set[tuple[int | None, object]] = set()
        self._withdrawn: frozenset[int] = frozenset()
        self._folder = FolderWatch(run, console, clock)
        self._away_since: float | None = None
        self._ended: frozenset[int] = frozenset()
        self._silent: frozenset[int] = frozenset()
        self._silence_at = self._stood_s = 0.0
        """When to look again which nodes are silent; how long this process was stopped by then."""
        self._exit_at = clock.monotonic()

    def turn(self) -> Ending | None:
        if (end := self._folder.poll()) is not None:
            return end
        observation = self._observe()
        if observation is None or is_stop_requested(self._run):
            # The nodes may have ended by that request: the next turn acts on it.
            return None
        action = self._decide(observation)
        if isinstance(action, Ending):
            return action
        if isinstance(action, endings.Replace):
            if self._may_start(action.node_index, action.why):
                self._replace(action.node_index, action.why)
        elif isinstance(action, endings.Restart) and self._may_start(None, action.why):
            self._restart(action.why, action.left)
        return None

    def _observe(self) -> Observation | None:
        """The nodes that the run should have; None while their target is away.

        Raises ``TargetError`` after ``AWAY_LIMIT_S``, or if the target is there but silent.
        """
        try:
            observation = self._target.observe(self.plan)
        except SilentTargetError:
            raise
        except TargetError as error:
            now = self._clock.monotonic()
            if self._away_since is None:
                self._away_since = now
                self._console.note(f"{error.what}; waiting for it, at most {AWAY_LIMIT_S:g} s")
            if now - self._away_since > AWAY_LIMIT_S:
                raise
            return None
        self._away_since = None
        for node in observation.nodes:
            wait = node.node_index, node.detail
            if node.state is NodeState.PENDING and node.detail and wait not in self._reported_waits:
                self._reported_waits.add(wait)
                self._note_moment(node.node_index, f"node {node.node_index}: {node.detail}")
        self._report_silent(observation.nodes)
        return without(observation, self._withdrawn)

    def _report_silent(self, nodes: Iterable[NodeObservation]) -> None:
        """Notes each node that runs without a sign of life; once, until it gives one again."""
        at, now, stood_s = self._clock.monotonic(), self._clock.wall(), self._clock.stood_s
        if stood_s > self._stood_s:
            # While this process was stopped no sign was brought here: await the next ones.
            self._stood_s, self._silence_at = stood_s, at + SILENT_S
        if at < self._silence_at:
            return
        self._silence_at = at + SILENT_S
        going = [node for node in nodes if node.state is NodeState.RUNNING and not node.detail]
        observed = (with_silence(self._run, self.plan, node, now) for node in going)
        silent = {node.node_index: node.detail for node in observed if node.detail}
        for index in silent.keys() - self._silent:
            self._note_moment(index, f"node {index}: {silent[index]}")
        self._silent = frozenset(silent)

    def _decide(self, observation: Observation) -> endings.Action:
        self.live = tuple(n.node_index for n in observation.nodes if n.is_alive)
        self._reported_waits -= {(index, self._started_at[index]) for index in self.live}
        now, before = self._clock.monotonic(), self._ended
        self._ended = frozenset(node.node_index for node in observation.nodes) - {*self.live}
        if not self._ended:
            return endings.Wait()
        # Agents continue without some nodes, so the timer starts again at each new exit.
        if not before or (self.plan.agent and before != self._ended):
            self._exit_at = now
        action = endings.decide_action(
            self.plan,
            observation,
            replaced=self._replaced,
            since_first_exit_s=now - self._exit_at,
            working=self._working(),
            left_early=self._left_early(),
        )
        return endings.judge_closed(action, self._target.tell_closed())

    def _left_early(self) -> frozenset[int]:
        """The nodes that finished, and were stopped or lost the store before the run was over."""
        outcomes = read_node_outcomes(self._run, self.plan)
        return frozenset(o.node_index for o in outcomes if o.detail == protocol.OTHERS_GO_ON)

    def _working(self) -> frozenset[int]:
        """The nodes whose present incarnation has started workers."""
        incarnations = {node.node_index: node.incarnation for node in self.plan.nodes}
        logs = self._run.worker_logs()
        return frozenset(
            log.node_index for log in logs if incarnations.get(log.node_index) == log.incarnation
        )

    def scale(self, nodes: int) -> None:
        """Nodes of the highest indices go first, and come back as later incarnations."""
        beyond = frozenset(range(nodes, len(self.plan.nodes)))
        leaving, returning = beyond - self._withdrawn, self._withdrawn - beyond
        self._withdrawn = beyond
        if leaving:
            with self._going_on():
                self._target.stop(self._run.run_id, self.plan.stop_grace_s, tuple(leaving))
        for index in sorted(returning):
            self._set_plan(plan_replacement(self.plan, index))
        if returning:
            with self._going_on():
                self._target.submit(self.plan, tuple(returning))

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Turns an error of the target into a note: one node must not end the run of all others."""
        try:
            yield
        except TargetError as error:
            self._console.note(f"{error.what}; the run goes on without it")

    def _may_start(self, index: int | None, why: str) -> bool:
        """Whether the pause of a node, or of all, is over. Reports each pause as it begins."""
        if index is None and self._working():
            # Workers have run: what failed was not the start.
            self._failed_at_once[None] = 0
        pause_s = endings.pause_before_replacing_s(self._failed_at_once[index])
        start = index, self._started_at[index]
        left_s = self._started_at[index] + pause_s - self._clock.monotonic()
        if left_s > REPORTED_PAUSE_S and start not in self._reported_waits:
            self._reported_waits.add(start)
            what = "starting all nodes again" if index is None else "replacing it"
            self._note_moment(index or 0, f"{why}; {what} in {left_s:.0f} s")
        return left_s <= 0

    def _note_moment(self, node_index: int, text: str) -> None:
        """Shows a line to the person who watches, and adds it to the timeline."""
        self._console.note(text)
        incarnation = self.plan.nodes[node_index].incarnation
        tell_moment(self._run, node_index, incarnation, at=self._clock.wall(), text=text)

    def _replace(self, node_index: int, why: str) -> None:
        living, node = len(self.live), self.plan.nodes[0]
        enough = living >= self.plan.min_nodes
        others = "go on" if enough else "wait for it"
        if enough and needs_majority(node, living) and 2 * living <= len(self.plan.nodes):
            others += " only if they are more than half of the last group"
        if (node_index, self._started_at[node_index]) not in self._reported_waits:
            self._note_moment(node_index, f"{why}; replacing it, the others {others}")
        now = self._clock.monotonic()
        if now - self._started_at[node_index] >= endings.STEADY_S:
            self._failed_at_once[node_index] = 0
        self._failed_at_once[node_index] += 1
        self._replaced[node_index] += 1
        self._started_at[node_index] = now
        # Where the others wait for this node, an error ends the run, so that a person sees it.
        with self._going_on() if enough else contextlib.nullcontext():
            self._target.collect(self.plan)
            self._set_plan(plan_replacement(self.plan, node_index))
            self._target.submit(self.plan, (node_index,))

    def _restart(self, why: str, left: int) -> None:
        self._console.note(f"{why}; starting all nodes again (at most {left} times)")
        with self._going_on():
            self._target.stop(self._run.run_id, self.plan.stop_grace_s)
        self._show()
        self._console.end_progress()
        self._set_plan(plan_next_attempt(self.plan))
        self._replaced.clear()
        self._failed_at_once = Counter({None: self._failed_at_once[None] + 1})
        self._started_at[None] = self._clock.monotonic()
        self._ended = frozenset()
        wanted = (node.node_index for node in self.plan.nodes)
        self._target.submit(self.plan, tuple(i for i in wanted if i not in self._withdrawn))

    def _set_plan(self, plan: LaunchPlan) -> None:
        self._run.write_plan(plan, self._target.render(plan).shell())
        self.plan = plan

    def end(self, why: Ending, *, stop_requested: bool) -> None:
        """As ``Driver.end``. An engine that died meanwhile must not hide how the run ended."""
        is_done = why.cause.state is RunState.SUCCEEDED
        self._stop(0 if is_done else self.plan.stop_grace_s)

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """As ``Driver.abandon``. Ends the nodes, as they have no launcher any more."""
        self._stop(0)
        return True

    def _stop(self, grace_s: float) -> None:
        """Ends what is left, or notes that this failed."""
        try:
            self._target.stop(self._run.run_id, grace_s)
        except TargetError as error:
            once_more = f"what runs on there ends with: {typed.command('stop', self._run.run_id)}"
            self._console.note(f"{error.what}; {once_more}")


def with_silence(
    run: RunFolder, plan: LaunchPlan, node: NodeObservation, now: float
) -> NodeObservation:
    """The node, with a ``detail`` if it runs without a sign of life, as a paused container does."""
    if node.state is not NodeState.RUNNING or node.detail:
        return node
    vitals = read_vitals(run.node_dir(node.node_index, node.incarnation))
    silent_s = measure_silence(plan, node.node_index, vitals, now) if vitals else 0.0
    if silent_s <= SILENT_S:
        return node
    return replace(node, detail=f"no sign of life for {silent_s:.0f} s")


def find_end(run: RunFolder, plan: LaunchPlan, target: Target) -> Ending | None:
    """As ``Target.find_end``, from what the target still holds and what the nodes left behind."""
    if any(live.run_id == run.run_id and live.running_nodes for live in target.live_runs()):
        return None
    observation = without(target.observe(plan), read_withdrawn(run, plan))
    if any(node.is_alive for node in observation.nodes):
        return None
    target.collect(plan)
    end = endings.judge_left(plan, observation)
    if end.detail == endings.UNHEARD and (run.is_foreign or run.is_elsewhere):
        # Its launcher may only be stopped: then it starts the nodes again.
        return None
    with contextlib.suppress(TargetError):
        target.stop(run.run_id, 0)
    return end
