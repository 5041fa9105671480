"""The follower and ``launcher.follow.nodes`` under the agent: a target plays a scripted course."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import TargetError
from launcher.follow import loop
from launcher.follow.console import Console
from launcher.follow.endings import FINISH_S
from launcher.follow.loop import Follower, fold
from launcher.follow.requests import request_scale, request_stop
from launcher.follow.target import LiveRun, NodeObservation, Observation, Target
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_replacement
from launcher.plan.target_facts import TargetFacts
from launcher.plan.torchrun import WorkerLog
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import read_ledger
from launcher.runs.outcome import Outcome
from tests.launcher.vitals import leave_vitals
from tests.waiting import StoppedClock, wait_until

MakePlan = Callable[..., LaunchPlan]
RUNS = "runs"


class ScriptedTarget(Target):
    """Each observation is the next line of the course: (seconds it lasts, a value per node)."""

    name = "local"

    def __init__(self, clock: StoppedClock, course: list[tuple[float, list[int | str]]]) -> None:
        self._clock, self._course, self._until = clock, course, 0.0
        super().__init__()
        self.started: list[tuple[int, ...] | None] = []
        self.plans: list[LaunchPlan] = []

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        self.started.append(only)
        self.plans.append(plan)

    def observe(self, plan: LaunchPlan) -> Observation:
        if self._clock.now >= self._until:
            lasts_s, self._now = self._course.pop(0)
            self._until = self._clock.now + lasts_s
        nodes = tuple(
            NodeObservation(
                node_index=index,
                incarnation=plan.nodes[index].incarnation,
                state=NodeState.RUNNING if value == RUNS else NodeState.EXITED,
                exit_code=value if isinstance(value, int) else None,
            )
            for index, value in enumerate(self._now)
        )
        return Observation(run_id=plan.run_id, nodes=nodes)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ScriptedTarget:
        return self

    def shell(self, *, embed: bool = False) -> str:
        return ""

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        pass

    def live_runs(self) -> tuple[LiveRun, ...]:
        return ()

    def facts(self, job: JobSpec) -> TargetFacts:
        raise NotImplementedError


def begin(
    tmp_path: Path, plan: LaunchPlan, target: ScriptedTarget, console: Console | None = None
) -> tuple[RunFolder, Follower, io.StringIO]:
    """The folder of a run that was not submitted yet, its follower, and what it says."""
    run, said = RunFolder(tmp_path / plan.run_id), io.StringIO()
    run.create(plan, "", 0.0)
    return run, Follower(run, plan, target, console or Console(said), target._clock), said


Follow = Callable[..., tuple[Outcome, ScriptedTarget, str]]


@pytest.fixture
def follow(tmp_path: Path, make_plan: MakePlan, local_facts: TargetFacts) -> Follow:
    def follow(
        nnodes: int | str,
        *course: tuple[float, list[int | str]],
        scale: int | None = None,
        shares_storage: bool = True,
    ) -> tuple[Outcome, ScriptedTarget, str]:
        facts = replace(local_facts, shares_storage=shares_storage)
        plan = make_plan(facts, nnodes=nnodes, nproc_per_node=1, engine="agent", max_restarts=0)
        target = ScriptedTarget(StoppedClock(), [*course])
        run, follower, said = begin(tmp_path, plan, target)
        if scale is not None:
            request_scale(run, scale)
        return follower.follow(), target, said.getvalue()

    return follow


def test_node_0_of_a_fixed_number_is_replaced_though_no_restart_is_allowed(follow):
    outcome, target, said = follow(2, (0, [137, RUNS]), (1, [RUNS, RUNS]), (1, [0, 0]))
    assert outcome.cause == "completed"
    assert target.started == [None, (0,)]
    assert target.plans[1].nodes[0].incarnation == 1
    assert target.plans[1].nodes[1].incarnation == 0
    assert target.plans[1].attempt == 0
    ended = "node 0 ended with exit code 137, SIGKILL (9) (killed)"
    assert f"{ended}; replacing it, the others wait for it" in said
    assert outcome.replaced_nodes == 1


def test_the_pauses_between_replacements_are_told_and_begin_anew_after_a_minute_of_training(
    follow, tmp_path
):
    lost, well = [137, RUNS], [RUNS, RUNS]
    course = [(20, lost), (70, well), (5, lost), (9, well), (1, [0, 0])]
    outcome, target, said = follow(2, *course)
    assert outcome.replaced_nodes == len(target.started) - 1 == 8, "the first of a row at once"
    assert said.count("replacing it, the others") == 2, "else the pause's line says it"
    pauses = re.findall(r"killed\); replacing it in (\d+) s", said)
    assert pauses == ["1", "2", "4", "8", "16", "1", "2", "4"]
    ledger = next(tmp_path.glob("*/ledger/pods.jsonl"))
    told = read_ledger(ledger, "cluster")
    assert [e.values["text"] for e in told if "in 2 s" in e.values["text"]]


def test_where_enough_nodes_are_left_they_are_said_to_go_on(follow):
    _, _, said = follow("1:2", (0, [RUNS, 143]), (1, [RUNS, RUNS]), (1, [0, 0]))
    ended = "node 1 ended with exit code 143, SIGTERM (15) (preempted)"
    assert f"{ended}; replacing it, the others go on" in said


@pytest.mark.parametrize(
    ("nnodes", "shares_storage", "waits"),
    [("1:2", True, False), ("1:2", False, True), ("1:3", False, False), ("2:3", False, False)],
)
def test_a_minority_without_a_shared_folder_is_not_said_to_go_on(
    follow, nnodes, shares_storage, waits
):
    others = [RUNS] * (int(nnodes[-1]) - 1)
    course = [(0, [*others, 137]), (1, [*others, RUNS]), (1, [0, *(0 for _ in others)])]
    _, _, said = follow(nnodes, *course, shares_storage=shares_storage)
    assert ("go on only if they are more than half of the last group\n" in said) == waits


def test_where_nobody_is_left_all_start_again_and_the_note_counts_what_is_left(follow):
    outcome, target, said = follow(1, (0, [137]), (1, [RUNS]), (1, [0]))
    assert (outcome.cause, outcome.attempts) == ("completed", 2)
    assert target.plans[1].nodes[0].rendezvous.id != target.plans[0].nodes[0].rendezvous.id
    assert "starting all nodes again (at most 16 times)" in said


def test_nodes_that_finish_after_each_other_each_get_their_time(follow):
    # Closed long ago, and finished only now: the others may still be writing.
    outcome, target, _ = follow(
        "1:3",
        (FINISH_S - 1, [RUNS, RUNS, 194]),
        (FINISH_S - 1, [0, RUNS, 194]),
        (1, [0, 0, 194]),
    )
    assert outcome.cause == "completed"
    assert outcome.finished_at > 2 * (FINISH_S - 1)
    assert target.started == [None]


def test_under_torchrun_a_node_is_replaced_as_often_as_restarts_are_allowed(tmp_path, make_plan):
    target = ScriptedTarget(StoppedClock(), [(20, [RUNS, 137]), (1, [0, 0])])
    plan = make_plan(nnodes="1:2", engine="torchrun", max_restarts=2)
    assert begin(tmp_path, plan, target)[1].follow().cause == "completed"
    assert target.started == [None, (1,), (1,)]


@pytest.mark.parametrize(("engine", "gives_up_s"), [("torchrun", 5), ("agent", 9)])
def test_the_others_get_their_time_to_fail_too_agents_from_each_new_exit_on(
    tmp_path, make_plan, engine, gives_up_s
):
    target = ScriptedTarget(StoppedClock(), [(4, [1, RUNS, RUNS]), (99, [1, 1, RUNS])])
    _, follower, _ = begin(tmp_path, make_plan(nnodes=3, engine=engine, max_restarts=0), target)
    assert follower.follow().cause == "training-failed"
    assert gives_up_s <= target._clock.now < gives_up_s + 0.3


def test_a_replacement_that_nobody_joins_any_more_is_not_waited_for(follow):
    hours = 10_000
    course = [(1, [RUNS, 137]), (1, [RUNS, RUNS]), (FINISH_S + 1, [0, RUNS])]
    outcome, target, said = follow(2, *course, (1, [RUNS, RUNS]), (1, [0, 0]))
    assert outcome.cause == "completed"
    assert target.started == [None, (1,), (0, 1)]
    assert "node 1 still lives though the run is over" in said
    outcome, _, _ = follow("1:2", *course[:2], (hours, [0, RUNS]))
    assert outcome.cause == "completed"
    assert outcome.finished_at < FINISH_S + 5


def test_a_run_that_was_scaled_down_stays_so_when_all_its_nodes_start_again(follow):
    outcome, target, said = follow("1:2", (0, [137, 143]), (1, [RUNS, 143]), (1, [0, 143]), scale=1)
    assert outcome.cause == "completed"
    assert target.started == [None, (0,)]
    assert "starting all nodes again" in said


@pytest.mark.parametrize(
    ("is_asked", "ends", "cause"),
    [
        (False, "", "launcher-lost"),
        (True, "", "stop-requested"),
        (True, 0, "completed"),
        (True, 1, "training-failed"),
    ],
)
def test_who_finds_a_run_ended_while_another_terminal_stops_it_is_told_why(
    tmp_path, make_plan, is_asked, ends, cause
):
    plan = make_plan(nnodes=1, nproc_per_node=1, engine="agent")
    run = RunFolder(tmp_path / plan.run_id)
    run.create(plan, "", 0.0)
    if is_asked:
        request_stop(run, keep=False)
    found = fold(run, ScriptedTarget(StoppedClock(), [(1, [ends])]), 1.0)  # type: ignore[arg-type]
    assert found.cause == cause


class OutOfReach(ScriptedTarget):
    """No node starts on it for some seconds, from its first on."""

    def __init__(self, clock: StoppedClock, away_s: float) -> None:
        super().__init__(clock, [(1, [RUNS, RUNS]), (away_s, [137, 137]), (1, [RUNS, RUNS])])
        self._course.append((1, [0, 0]))


@pytest.mark.parametrize("away_s", [5, 120])
def test_nodes_that_cannot_be_started_are_not_tried_many_times_a_second(
    tmp_path, make_plan, away_s
):
    target = OutOfReach(StoppedClock(), away_s)
    run, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)
    assert follower.follow().cause == "completed"
    assert len(target.started) <= 9, said.getvalue()
    assert "starting all nodes again in 1 s" in said.getvalue()
    told = read_ledger(run.path / "ledger/pods.jsonl", "cluster")
    assert {event.node_index for event in told if "starting all" in event.values["text"]} == {0}


class Working(ScriptedTarget):
    """Its nodes start their workers at once."""

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        super().submit(plan, only)
        for node in plan.nodes:
            begin_worker(self.run, node.node_index, node.incarnation)


def begin_worker(run: RunFolder, node_index: int, incarnation: int) -> None:
    folder = run.node_dir(node_index, incarnation) / f"attempt-0/rank-{node_index}"
    folder.mkdir(parents=True)


def test_nodes_whose_workers_have_run_start_again_without_a_pause(tmp_path, make_plan):
    target = Working(StoppedClock(), [*[(0, [137])] * 3, (0, [0])])
    target.run, follower, _ = begin(tmp_path, make_plan(nnodes=1, engine="agent"), target)
    assert follower.follow().attempts == 4
    assert target._clock.now < 1


@pytest.mark.parametrize(
    ("left_early", "works", "waits"),
    [(True, 1, True), (True, 0, False), (True, None, False), (False, 1, False)],
)
def test_where_a_node_left_early_who_still_works_is_waited_for(
    tmp_path, make_plan, left_early, works, waits
):
    plan = plan_replacement(make_plan(nnodes="1:2", engine="agent"), 1)
    target = ScriptedTarget(StoppedClock(), [(1, [RUNS, RUNS]), (99, [0, RUNS]), (1, [0, 0])])
    run, follower, _ = begin(tmp_path, plan, target)
    if works is not None:  # in its present life, or an earlier one
        begin_worker(run, 1, works)
    run.node_dir(0, 0).mkdir(parents=True)
    why = protocol.OTHERS_GO_ON if left_early else "the script is done"
    told = NodeOutcome(node_index=0, incarnation=0, cause=Cause.COMPLETED, detail=why)
    (run.node_dir(0, 0) / protocol.OUTCOME_FILE).write_text(told.to_json())
    outcome = follower.follow()
    assert outcome.cause == "completed"
    assert (outcome.finished_at >= 100) == waits


class WaitingTarget(ScriptedTarget):
    """Node 1 has no place for some seconds; it says so only after the first."""

    def __init__(self, clock: StoppedClock) -> None:
        super().__init__(clock, [(9, [RUNS, RUNS]), (1, [0, 0])])

    def observe(self, plan: LaunchPlan) -> Observation:
        seen = super().observe(plan)
        if self._clock.now < 8:
            told = "waiting for a place" if self._clock.now >= 1 else ""
            waits = replace(seen.nodes[1], state=NodeState.PENDING, detail=told)
            return replace(seen, nodes=(replace(seen.nodes[0], detail="on a host"), waits))
        return seen


def test_a_node_that_waits_for_its_place_is_told_once_and_not_lost(tmp_path, make_plan):
    target = WaitingTarget(StoppedClock())
    _, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)
    assert follower.follow().cause == "completed"
    waits = [line for line in said.getvalue().splitlines() if "node" in line]
    assert waits == ["launcher: node 1: waiting for a place"]
    assert target.started == [None]


class AwayTarget(ScriptedTarget):
    """Cannot be asked for some seconds, from its first on."""

    def __init__(self, clock: StoppedClock, away_s: float) -> None:
        super().__init__(clock, [(1, [RUNS]), (1, [0])])
        self._away_s = away_s

    def observe(self, plan: LaunchPlan) -> Observation:
        if 1 <= self._clock.now < 1 + self._away_s:
            raise TargetError("no engine answers")
        return super().observe(plan)


def test_an_interrupt_before_the_submission_starts_nothing(tmp_path, make_plan):
    target = ScriptedTarget(StoppedClock(), [(0, [RUNS])])
    run, follower, said = begin(tmp_path, make_plan(nnodes=1, engine="agent"), target)
    follower.interrupt()
    follower._console.note_lost_stdout("Ctrl-C ended its reader too")
    assert "the run goes on" not in said.getvalue()
    outcome = follower.follow()
    assert target.started == []
    assert (outcome.cause, outcome.exit_code) == ("interrupted", 130)
    assert run.read_outcome() == outcome


class FailingFolder(RunFolder):
    """On a file server that is started anew for some seconds, from its first on."""

    def __init__(self, path: Path, clock: StoppedClock, fails_s: float) -> None:
        super().__init__(path)
        self._clock, self._fails_s = clock, fails_s

    def worker_logs(self) -> tuple[WorkerLog, ...]:
        if 1 <= self._clock.now < 1 + self._fails_s:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))
        return super().worker_logs()


def follow_through(tmp_path: Path, plan: LaunchPlan, away_s: float, fails_s: float) -> str:
    """What was said of a run whose target was away, or whose folder failed, for so long."""
    clock, said = StoppedClock(), io.StringIO()
    run = FailingFolder(tmp_path / plan.run_id, clock, fails_s)
    run.create(plan, "", 0.0)
    console = Console(said)
    target = AwayTarget(clock, away_s)
    assert Follower(run, plan, target, console, clock).follow().cause == "completed"
    return said.getvalue()


@pytest.mark.parametrize(
    ("away_s", "fails_s", "told"),
    [
        (119, 0, "no engine answers; waiting for it, at most 120 s"),
        (0, 59, "; waiting for it, at most 60 s"),
    ],
)
def test_a_target_or_storage_that_is_away_for_a_moment_ends_no_run(
    tmp_path, make_plan, away_s, fails_s, told
):
    said = follow_through(tmp_path, make_plan(nnodes=1, engine="agent"), away_s, fails_s)
    assert said.count(told) == 1


@pytest.mark.parametrize(
    ("away_s", "fails_s", "raised"), [(122, 0, "no engine answers"), (0, 62, "Stale file handle")]
)
def test_a_target_or_storage_that_stays_away_ends_it(tmp_path, make_plan, away_s, fails_s, raised):
    with pytest.raises((TargetError, OSError), match=raised):
        follow_through(tmp_path, make_plan(nnodes=1, engine="agent"), away_s, fails_s)


class SlowToEnd(ScriptedTarget):
    """A node that takes 10 s to end, and writes lines until each is shown."""

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        self.told: list[list[str]] = []
        for slept_s in (4.9, 0.1, 4.9, 0.2):
            self._clock.sleep(slept_s)
            for number in (1, 2):  # The second is shown a turn later.
                line = f"line {number} at {self._clock.now:.1f} s\n"
                with self.file.open("a") as file:
                    file.write(line)
                wait_until(lambda line=line: line in self.said.getvalue(), limit_s=30)
            self.told.append(re.findall(r"still stopping, (\d+) s", self.said.getvalue()))


@pytest.mark.parametrize("is_asked", [False, True])
def test_what_is_printed_while_a_run_stops_is_shown_at_once_and_who_asked_is_told_how_it_goes(
    tmp_path, make_plan, monkeypatch, is_asked
):
    monkeypatch.setattr(loop, "POLL_S", 0.01)
    plan = make_plan(nnodes=1, nproc_per_node=1, engine="agent")
    target = SlowToEnd(StoppedClock(7.0), [(0, [0])])
    run, follower, target.said = begin(tmp_path, plan, target)
    target.file = run.node_dir(0, 0) / "attempt-0/rank-0/stdout"
    target.file.parent.mkdir(parents=True)
    follower.follow(follower.interrupt if is_asked else lambda: None)
    assert target.told == ([[], ["5"], ["5"], ["5", "10"]] if is_asked else [[]] * 4)


def test_a_launcher_that_was_stopped_says_so_and_awaits_the_nodes_next_signs(
    tmp_path, make_plan, local_facts
):
    plan = make_plan(local_facts, nnodes=1, nproc_per_node=1, engine="agent", max_restarts=0)
    clock = StoppedClock()
    target = ScriptedTarget(clock, [(20, [RUNS]), (1, [0])])
    run, follower, said = begin(tmp_path, plan, target)
    leave_vitals(run.node_dir(0, 0), at=0.0)

    def stand(_: float) -> None:
        if clock.now > 10.0:
            clock.stood_s, clock.on_sleep = 300.4, None
            clock.wall = lambda: clock.now + 300.4

    clock.on_sleep = stand
    assert follower.follow().cause == "completed"
    assert "this launcher did not run for 300 s" in said.getvalue()
    assert "no sign of life" not in said.getvalue()


def test_a_stop_that_was_asked_for_while_nodes_were_looked_at_is_why_they_ended(
    tmp_path, make_plan, local_facts
):
    plan = make_plan(local_facts, nnodes=1, nproc_per_node=1, engine="agent")
    target = ScriptedTarget(StoppedClock(), [(1, [RUNS]), (9, [143])])
    run, follower, _ = begin(tmp_path, plan, target)
    observe = target.observe

    def observe_ended(plan: LaunchPlan) -> Observation:
        seen = observe(plan)
        if not seen.nodes[0].is_alive:
            request_stop(run, keep=False)
        return seen

    target.observe = observe_ended
    assert follower.follow().cause == "stop-requested"
    assert target.started == [None], "its nodes are not started again"


def test_a_node_that_falls_silent_is_told_of_once(tmp_path, make_plan, local_facts):
    plan = make_plan(local_facts, nnodes=2, nproc_per_node=1, engine="agent", max_restarts=0)
    target = ScriptedTarget(StoppedClock(), [(120, [RUNS, RUNS]), (1, [0, 0])])
    run, follower, said = begin(tmp_path, plan, target)
    for index, at in ((0, 1000.0), (1, 0.0)):
        leave_vitals(run.node_dir(index, 0), at=at)
    assert follower.follow().cause == "completed"
    assert re.findall(r"node \d: no sign .*", said.getvalue()) == [
        "node 1: no sign of life for 15 s"
    ]
