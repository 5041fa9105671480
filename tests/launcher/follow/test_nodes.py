"""Nodes that the launcher starts itself: how their number changes, and how runs without one end."""

import contextlib
import io
from dataclasses import replace

import pytest

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import SilentTargetError, TargetError
from launcher.follow.console import Console
from launcher.follow.endings import UNHEARD
from launcher.follow.nodes import FolderWatch, NodeDriver, find_end
from launcher.follow.requests import write_size
from launcher.follow.target import LiveRun, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import LAUNCHER_FILE, RunFolder
from tests.launcher.api.conftest import DEAD, mark
from tests.launcher.follow.test_agent import ScriptedTarget
from tests.launcher.follow.test_next_step import GONE, RUNS, observe
from tests.waiting import StoppedClock


class Target(ScriptedTarget):
    """Tells the same of its nodes each time, and notes what it is asked to end."""

    def __init__(self, seen: Observation, live: tuple[LiveRun, ...] = ()) -> None:
        super().__init__(StoppedClock(), [])
        self.seen, self.live = seen, live
        self.ended: list[tuple[float, tuple[int, ...] | None]] = []
        self.is_away = False

    def observe(self, plan: LaunchPlan) -> Observation:
        return self.seen

    def live_runs(self) -> tuple[LiveRun, ...]:
        return self.live

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        self.ended.append((grace_s, only))
        if self.is_away:
            raise TargetError("it does not answer")


DIED = "its launcher died, and its processes with it"


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0, 0), (Cause.COMPLETED, "")),
        ((1, 137), (Cause.TRAINING_FAILED, "")),
        ((137, 137), (Cause.LAUNCHER_LOST, "")),
        ((GONE, GONE), (Cause.LAUNCHER_LOST, DIED)),
        ((0, RUNS), None),
        ((0, 0, RUNS), (Cause.COMPLETED, "")),
    ],
)
def test_a_run_without_its_launcher_ends_as_its_nodes_did(ends, told, tmp_path, make_plan):
    plan, run = make_plan(nnodes=f"1:{len(ends)}", engine="agent"), RunFolder(tmp_path)
    write_size(run, 2)
    target = Target(observe(*ends))
    end = find_end(run, plan, target)
    assert (end and (end.cause, end.detail)) == told
    assert target.ended == ([(0, None)] if told else [])
    # A node that does not answer as its rest is ended hides no end.
    target.is_away = True
    others = LiveRun(run_id="other", run_dir="", running_nodes=1)
    left = LiveRun(run_id=run.run_id, run_dir="", running_nodes=0)
    target.live = (others, left)
    assert find_end(run, plan, target) == end
    target.live = (others, replace(left, running_nodes=1))
    assert find_end(run, plan, target) is None


def test_hosts_that_ended_a_run_for_its_lost_launcher_say_so(tmp_path, make_plan):
    (node,) = observe(143).nodes
    seen = Observation(run_id="r", nodes=(replace(node, detail=protocol.LAUNCHER_GONE),))
    run, plan = RunFolder(tmp_path), make_plan(nnodes=1, engine="agent")
    mark(run, DEAD)
    end = find_end(run, plan, Target(seen))
    assert end.detail == UNHEARD
    # One that cannot be seen from here may only be stopped.
    mark(run, DEAD, "another machine")
    target = Target(seen)
    assert find_end(run, plan, target) is None
    (run.path / LAUNCHER_FILE).unlink()
    assert find_end(run, plan, target) is None
    assert target.ended == []


def test_nodes_go_and_come_back_as_their_next_lives(tmp_path, make_plan):
    plan, said = make_plan(nnodes="1:4", engine="agent"), io.StringIO()
    run, target = RunFolder(tmp_path / plan.run_id), Target(observe(RUNS, RUNS, RUNS, RUNS))
    run.create(plan, "", 0.0)
    driver = NodeDriver(run, plan, target, Console(said), StoppedClock(), lambda: None)
    for nodes, ended, started in ((4, 0, 0), (2, 1, 0), (2, 1, 0), (3, 1, 1), (4, 1, 2)):
        driver.scale(nodes)
        assert (len(target.ended), len(target.started)) == (ended, started)
    (grace_s, gone), *_ = target.ended
    assert (grace_s, sorted(gone or ())) == (plan.stop_grace_s, [2, 3])
    assert target.started == [(2,), (3,)]
    assert [node.incarnation for node in run.read_plan().nodes] == [0, 0, 1, 1]
    target.is_away = True
    driver.scale(1)
    assert "it does not answer; the run goes on without it" in said.getvalue()


class Short(ScriptedTarget):
    """Cannot start a node again; ``error`` is what it says."""

    def __init__(self, course: list[tuple[float, list[int | str]]], error: TargetError) -> None:
        super().__init__(StoppedClock(), course)
        self.error = error

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("nnodes", "ends", "goes_on"),
    [(2, (RUNS, 137), False), ("1:2", (RUNS, 137), True), ("1:2", (137, 137), False)],
)
def test_a_node_that_cannot_be_replaced_ends_only_a_run_that_waits_for_it(
    tmp_path, make_plan, nnodes, ends, goes_on
):
    plan, said = make_plan(nnodes=nnodes, engine="agent"), io.StringIO()
    run = RunFolder(tmp_path / plan.run_id)
    run.create(plan, "", 0.0)
    target = Short([(9, [*ends])], TargetError("no place"))
    driver = NodeDriver(run, plan, target, Console(said), target._clock, lambda: None)
    with contextlib.nullcontext() if goes_on else pytest.raises(TargetError, match="no place"):
        assert driver.turn() is None
    assert ("no place; the run goes on without it" in said.getvalue()) == goes_on
    # The next try waits for a second, and what is waited for is said once.
    assert [driver.turn() for _ in range(2 * goes_on)] == [None] * 2 * goes_on
    assert said.getvalue().count("replacing it in 1 s") == goes_on


def test_a_target_that_is_there_but_silent_is_not_waited_for(tmp_path, make_plan, monkeypatch):
    plan, said = make_plan(nnodes=1, engine="agent"), io.StringIO()
    target = Target(observe(RUNS))

    def observe_nothing(plan: LaunchPlan) -> Observation:
        raise SilentTargetError("it hangs")

    monkeypatch.setattr(target, "observe", observe_nothing)
    run = RunFolder(tmp_path / plan.run_id)
    run.create(plan, "", 0.0)
    driver = NodeDriver(run, plan, target, Console(said), StoppedClock(), lambda: None)
    with pytest.raises(SilentTargetError):
        driver.turn()
    assert said.getvalue() == ""


def test_a_run_whose_folder_is_gone_for_some_seconds_ends(tmp_path, make_plan):
    run, said, clock = RunFolder(tmp_path / "a"), io.StringIO(), StoppedClock()
    run.create(make_plan(), "", 0.0)
    watch = FolderWatch(run, Console(said), clock)
    assert watch.poll() is None
    run.path.rename(tmp_path / "b")
    for slept_s, is_over in ((0.0, False), (3.0, False), (0.1, True)):
        clock.sleep(slept_s)
        end = watch.poll()
        assert (end is not None) == is_over
    assert (end.cause, end.detail) == (
        Cause.STOP_REQUESTED,
        "its folder was removed while it ran",
    )
    assert f"stopping: {run.path} was removed" in said.getvalue()
    (tmp_path / "b").rename(run.path)
    assert watch.poll() is None
    run.path.rename(tmp_path / "b")
    clock.sleep(99.0)
    assert watch.poll() is None, "it counts from when it was missed"


class Closed(Target):
    """Starts no node any more."""

    def tell_closed(self) -> str:
        return "the hold dev has ended (stop-requested)"


@pytest.mark.parametrize(
    ("nnodes", "ends", "cause"),
    [
        (2, (RUNS, 143), Cause.NODE_LOST),
        ("1:2", (RUNS, GONE), Cause.NODE_LOST),
        (2, (143, 143), Cause.NODE_LOST),
        (1, (143,), Cause.NODE_LOST),
        (1, (1,), Cause.TRAINING_FAILED),
        (2, (0, 0), Cause.COMPLETED),
        (2, (RUNS, RUNS), None),
    ],
)
def test_a_run_whose_hold_has_ended_ends_and_nothing_is_said_of_new_nodes(
    tmp_path, make_plan, nnodes, ends, cause
):
    plan, said = make_plan(nnodes=nnodes, engine="agent"), io.StringIO()
    run, target = RunFolder(tmp_path / plan.run_id), Closed(observe(*ends))
    run.create(plan, "", 0.0)
    driver = NodeDriver(run, plan, target, Console(said), StoppedClock(), lambda: None)
    end = driver.turn()
    assert (end and end.cause) == cause
    if cause is Cause.NODE_LOST:
        assert end.detail == target.tell_closed()
    assert (said.getvalue(), target.started) == ("", [])
