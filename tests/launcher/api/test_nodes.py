"""What is asked of a run's nodes: programs, looks, profiles, a verdict, another size, a hold."""

import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from launcher.api.profile import take_profile
from launcher.api.programs import plan_shell, run_in_nodes
from launcher.api.report import report_run
from launcher.api.resizing import scale_run
from launcher.api.stacks import RunStacks, render_stacks, take_stacks
from launcher.api.starting import holding
from launcher.api.why import read_named_run, read_path
from launcher.contract.causes import Cause, NodeState
from launcher.contract.errors import InputError, TargetError
from launcher.contract.hold import OWNER_FILE
from launcher.contract.protocol import SCALE_REQUEST
from launcher.contract.records import dump_record, parse_record, read_object
from launcher.contract.reports.look import (
    LOOK_FILE,
    LOOK_REQUEST,
    Look,
    LookRequest,
    RankLook,
    RankStacks,
    look_dir,
)
from launcher.contract.reports.look import ThreadStack as Thread
from launcher.follow.requests import request_stop
from launcher.follow.target import Door, NodeObservation, Observation
from launcher.runs.folder import BORROWED_FILE, RunFolder
from launcher.targets.held.hold import Hold
from launcher.targets.local.target import LocalTarget
from launcher.verdict.collectives import Mismatch
from launcher.verdict.verdict import decide_verdict
from tests.launcher.api.conftest import DEAD, mark
from tests.launcher.looks import write_look
from tests.waiting import StoppedClock

NAME = "digits-0a1b2c"
HOLD = {"hold_idle_s": 60.0}


# -- programs ---------------------------------------------------------------------------------


def door(target: object, plan: object, index: int) -> Door:
    """Reaches nodes 0 and 1; the ways to the others fail, each in its own manner."""
    if index == 3:
        raise TargetError("it has not started", "wait")
    ways = {2: ("sh", "-c", "echo no route >&2; exit 255"), 4: ("/gone/ssh",)}
    words = ways.get(index, ("sh", "-c", 'echo noise >&2; "$@"', "sh", "env", f"WHERE={index}"))
    return Door(words=words, at_terminal=words, python="python", archive="agent")


def test_a_program_runs_in_all_nodes_and_those_that_are_not_reached_say_why(make_run, on_local):
    run, _ = make_run(nnodes=5, follows=True, env={"A": "a"})
    on_local(door=door)
    shown: dict[int, list[str]] = {index: [] for index in range(5)}

    def ask(script: str, node: int | None = None) -> dict[int, int]:
        return run_in_nodes(run, ("sh", "-c", script), lambda n, line: shown[n].append(line), node)

    codes = ask('echo $A $WHERE; echo e >&2; [ $WHERE = 1 ] && kill -9 $$; [ "$(cat)" ] || exit 3')
    assert codes == {0: 3, 1: 137, 2: 255, 3: 255, 4: 255}
    assert shown[0] == ["a 0", "e"]
    assert (shown[1], shown[2]) == (["a 1", "e"], ["no route"])
    assert shown[3][0].startswith("not reached: it has not started")
    assert shown[4][0].startswith("not reached: ")
    assert ask("exit 0", 0) == {0: 0}
    assert ask("exit 1", 1) == {1: 1}
    assert shown[1][2:] == ["noise"], "of a program that fails and says nothing, the way's own"
    typed = {"input": b"echo $A $WHERE", "capture_output": True}
    assert subprocess.run(plan_shell(run, 1), **typed).stdout == b"a 1\n"  # type: ignore[call-overload]


# -- looks ------------------------------------------------------------------------------------


def answering(run: RunFolder, *ranks: int, traced: int = -1) -> StoppedClock:
    """A clock on which these ranks' agents answer, each on its own node."""

    def play(_: float) -> None:
        for rank in ranks:
            request = run.node_dir(rank, 0) / LOOK_REQUEST
            if request.exists():
                asked = parse_record(LookRequest, read_object(request))
                request.unlink()
                write_look(run.node_dir(rank, 0), asked.id, rank, traced=rank == traced)

    begun = len([*run.path.glob("nodes/*/*/looks/*")])
    return StoppedClock(1000.0 + begun, play)


@pytest.fixture
def run(make_run: Any) -> RunFolder:
    """A run of three nodes that goes on, and of which all have begun."""
    run: RunFolder = make_run(nnodes=3, nproc_per_node=1, follows=True)[0]
    for index in range(3):
        run.node_dir(index, 0).mkdir(parents=True)
    return run


FOUND = RunStacks(
    run_id=NAME,
    at=1.0,
    ended="completed",
    looks={
        0: Look(
            id="a",
            at=1.0,
            why="asked",
            attempt=0,
            ranks=(
                RankLook(rank=0, pid=1, state="T"),
                RankLook(rank=1, pid=1, state="S", no_stacks="gone"),
                RankLook(rank=2, pid=1, state="S", no_collectives="old torch"),
            ),
        )
    },
    silent={1: "no answer"},
    stacks={
        3: RankStacks(
            rank=3,
            pid=1,
            taken_by="faulthandler",
            missing="no right",
            threads=(Thread(name="", is_main=True), Thread(name="io", is_main=False)),
        ),
        4: RankStacks(rank=4, pid=1, taken_by="worker", missing="not here"),
    },
    findings=(
        Mismatch(kind="missing", text="rank 1 is late", ranks=(1,), group="", seq=1, op="a"),
    ),
)


def test_a_look_for_the_frames_of_c_says_who_has_none():
    looks = {node: replace(look, native=True) for node, look in FOUND.looks.items()}
    told = render_stacks(replace(FOUND, looks=looks))
    assert "rank 3: by faulthandler, without the frames of C, as no right" in told
    assert "without the frames of C" not in render_stacks(FOUND)


def test_a_look_tells_who_stands_where_and_what_is_missing(run, expect_golden):
    clock = answering(run, 0, 1)
    told = take_stacks(run, clock)
    assert (told.at, round(clock.now - told.at, 1)) == (1000.0, 5.0)
    texts = [render_stacks(told), render_stacks(FOUND), render_stacks(FOUND, all_threads=True)]
    expect_golden("looks.txt", "\n".join(texts))
    assert [group["ranks"] for group in told.to_jsonable()["groups"]] == [(0, 1)]
    assert len(FOUND.to_jsonable()["groups"]) == 2
    one = take_stacks(run, answering(run, 0, 1), rank=1)
    assert (list(one.stacks), [len(look.ranks) for look in one.looks.values()]) == ([1], [0, 1])
    with pytest.raises(InputError, match=f"--rank 7: {NAME} has ranks 0-1 there") as refused:
        take_stacks(run, answering(run, 0, 1), rank=7)
    assert refused.value.hint == "--rank 1"
    assert take_stacks(run, answering(run), rank=7).stacks == {}


def test_a_node_without_workers_is_told(make_run):
    run, _ = make_run(ended=Cause.NODE_LOST)
    folder = look_dir(run.node_dir(0, 0), "a")
    folder.mkdir(parents=True)
    (folder / LOOK_FILE).write_text(dump_record(Look(id="a", at=1.0, why="loss", attempt=-1)))
    told = render_stacks(take_stacks(run, StoppedClock()))
    assert told.splitlines()[1:] == ["node 0: no look: no worker runs there"]


def test_of_a_run_that_has_ended_the_last_look_is_shown(make_run):
    run, _ = make_run(ended=Cause.COMPLETED)
    with pytest.raises(InputError, match=r"has ended \(completed\), and no look at its workers"):
        take_stacks(run, StoppedClock())
    write_look(run.node_dir(0, 0), "a", 0, why="hang")
    told = take_stacks(run, StoppedClock(50.0))
    assert (told.ended, told.at, list(told.stacks)) == ("completed", 1.0, [0])


def test_a_profile_brings_a_file_of_each_rank_or_says_why_not(run):
    clock = answering(run, 0, 1, traced=0)
    found = take_profile(run, clock, steps=1, seconds=7)
    assert clock.now == pytest.approx(1000 + 7 + 25, abs=0.1)
    assert {rank: path.name for rank, path in found.files.items()} == {0: "rank-0.trace.json"}
    assert found.missing == {1: "its node has sent no file"}
    assert found.silent == {2: "it has not started its workers yet"}
    with pytest.raises(InputError, match="--steps 0: a profile has a step at least"):
        take_profile(run, clock, steps=0, seconds=7)


def profile(run: RunFolder, clock: StoppedClock) -> object:
    return take_profile(run, clock, steps=1, seconds=1)


@pytest.mark.parametrize("look", [take_stacks, profile])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engine": "torchrun", "follows": True}, "plain torchrun, which has no agent"),
        ({"agent": HOLD, "follows": True}, "is a hold and has no workers"),
        ({"ended": Cause.COMPLETED}, r"has ended \(completed\), and"),
    ],
)
def test_a_run_without_workers_or_agents_is_not_looked_at(look, keys, words, make_run):
    with pytest.raises(InputError, match=words):
        look(make_run(**keys)[0], StoppedClock())


# -- a verdict and a report ---------------------------------------------------------------------


def see(*told: tuple[int, str]) -> Any:
    nodes = tuple(
        NodeObservation(node_index=index, incarnation=0, state=NodeState.RUNNING, detail=detail)
        for index, detail in told
    )
    return lambda *_: (Observation(run_id=NAME, nodes=nodes), None)


def silent(*_: object) -> None:
    raise TargetError("no answer", "wait")


def test_a_verdict_on_a_run_that_goes_on_rests_on_its_target_and_a_look(run, on_local, monkeypatch):
    on_local(observe_reachable=see((0, ""), (1, "no space left")))
    monkeypatch.setattr("launcher.api.why.SystemClock", lambda: answering(run, 0, 1))
    told = read_named_run(run)
    assert (told.state, len(told.standing)) == ("running", 2)
    assert [line.text for line in told.lines if line.node == 1] == ["running: no space left"]
    assert not [line for line in told.lines if line.node == 0]
    on_local(observe_reachable=silent, look_at_workers=silent)
    assert read_named_run(run).state == "running"


def test_a_verdict_rests_on_a_folder_of_a_run_or_of_logs_or_on_one_log(make_run, tmp_path):
    run, _ = make_run(ended=Cause.NODE_LOST)
    assert read_path(run.path).run_cause == Cause.NODE_LOST
    assert read_named_run(run).state == "failed"
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("RuntimeError: CUDA out of memory\n")
    for path in (logs, logs / "a.log"):
        told = read_path(path)
        assert (told.subject, told.run_cause, len(told.lines)) == (str(path), None, 1)
    with pytest.raises(InputError, match="gone: no log and no folder"):
        read_path(tmp_path / "gone")


def test_a_report_has_what_the_target_says_of_nodes_and_what_can_be_read(run, on_local, make_run):
    on_local(observe_reachable=see((1, "paused")))
    assert [node.state for node in report_run(run, 9.0).nodes] == ["", "running", ""]
    on_local(observe_reachable=silent)
    assert [node.state for node in report_run(run, 9.0).nodes] == ["", "", ""]
    brought: list[bool] = []
    on_local(bring_output=lambda *_, follow: brought.append(follow) or silent())
    (run.path / BORROWED_FILE).touch()
    assert (report_run(run, 9.0).state, brought) == ("running", [False])
    over, _ = make_run(name="over", ended=Cause.COMPLETED)
    unread = ("unreadable", "an unknown target", "")
    for one, told in ((run, unread), (over, ("succeeded", "local", "digits"))):
        (one.path / "plan.json").write_text("{}")
        report = report_run(one, 9.0)
        assert (report.state, report.target, report.job) == told
        assert "plan.json is not the plan of a run" in report.missing[0]


# -- another size, and a hold ---------------------------------------------------------------------


def test_a_scaling_is_asked_of_the_launcher_and_waited_for(make_run, on_local):
    run, _ = make_run(nnodes="1:4", follows=True)
    request = run.path / SCALE_REQUEST
    clock = StoppedClock()
    with pytest.raises(TargetError, match=f"the launcher of {NAME} has not answered for 30 s"):
        scale_run(run, 2, clock)
    assert clock.now == pytest.approx(30, abs=0.1)
    told = scale_run(run, 2, StoppedClock(on_sleep=lambda _: request.unlink()))
    assert told == f"{NAME}: asked for 2 nodes; launcher status {NAME} shows them"
    with pytest.raises(InputError, match="5 nodes asked for"):
        scale_run(run, 5)
    on_local(scale=lambda *_: True)
    for keys in ({"ended": Cause.COMPLETED}, {"ended": Cause.COMPLETED, "follows": True}):
        with pytest.raises(InputError, match=r"over has ended \(completed\)"):
            scale_run(make_run(name="over", nnodes="1:4", **keys)[0], 2, StoppedClock())
    alone, _ = make_run(name="alone", nnodes="1:4")
    assert scale_run(alone, 1, StoppedClock()) == "alone: asked for 1 node"
    fixed, _ = make_run(name="fixed", nnodes=1, ended=Cause.COMPLETED)
    with pytest.raises(InputError, match="fixed has ended"):
        scale_run(fixed, 2)
    on_local(scale=lambda *_: False)
    with pytest.raises(InputError, match="no launcher follows it"):
        scale_run(alone, 1, StoppedClock())


def test_a_hold_is_found_by_its_name_or_id_entered_and_released(make_run, on_local, tmp_path):
    make_run(name="training-1", follows=True)
    with pytest.raises(InputError, match=r"no hold 'digits' in .*\n.*--name digits --nnodes N"):
        holding.find_hold(tmp_path, "digits")
    make_run(0.5, name="digits-1", agent=HOLD, ended=Cause.STOP_REQUESTED, nnodes=2)
    with pytest.raises(InputError, match=r"has ended \(stop-requested\)\n.*--nnodes 2"):
        holding.find_hold(tmp_path, "digits")
    holding.check_name(tmp_path, "digits")
    with pytest.raises(InputError, match=r"no hold 'digts' in .*\n  fix: launcher hold --name"):
        holding.find_hold(tmp_path, "digts")
    run, _ = make_run(name="digits-2", agent=HOLD, follows=True)
    assert {holding.find_hold(tmp_path, name).path for name in ("digits", "digits-2")} == {run.path}
    with pytest.raises(InputError, match=r"did you mean digits\? Else: .*hold --name digts "):
        holding.find_hold(tmp_path, "digts")
    with pytest.raises(InputError, match=r"that hold is there already \(digits-2\)"):
        holding.check_name(tmp_path, "digits")
    target = LocalTarget(tmp_path)
    assert dict(holding.enter_hold(run, target, fresh=True).there.gives)["start"] == "fresh"
    target.name = "other"
    with pytest.raises(InputError, match="--in digits: that hold is on local"):
        holding.enter_hold(run, target, fresh=False)
    user = Hold(run)
    user.enter("other-1")
    with pytest.raises(InputError, match="digits is in use: other-1 of "):
        holding.release(tmp_path, "digits", 1)
    user.leave()
    on_local(find_end=lambda *_: None)
    (run.path / "launcher.json").unlink()
    assert holding.release(tmp_path, "digits", 1).startswith("digits-2: stopped")
    assert Hold(run).read_user() is None
    with pytest.raises(TargetError, match=r"digits-2 has ended \("):
        holding.wait_ready(run)
    assert "@" in (run.path / OWNER_FILE).read_text()


def test_a_hold_that_was_ended_whose_end_is_asked_for_or_whose_launcher_is_gone_is_told(make_run):
    run, _ = make_run(name="digits-1", agent=HOLD, follows=True)
    assert Hold(run).tell_ended() == ""
    mark(run, DEAD)
    assert Hold(run).tell_ended() == "the hold digits has ended (launcher-lost)"
    mark(run, os.getpid())
    request_stop(run, keep=False)
    assert Hold(run).tell_ended() == "the hold digits has ended (stop-requested)"
    over, _ = make_run(name="over-1", agent=HOLD, ended=Cause.COMPLETED)
    assert Hold(over).tell_ended().endswith(" has ended (completed)")
    # Containers of a hold outlive its launcher.
    others, plan = make_run(name="others-1", agent=HOLD)
    others.write_plan(replace(plan, own=None), "")
    mark(others, DEAD)
    assert Hold(others).tell_ended() == ""


def test_why_sends_nobody_to_the_stacks_of_a_hold(make_run, on_local):
    run, _ = make_run(name="digits-1", agent=HOLD, follows=True)
    on_local(observe=lambda *_: Observation(run_id="digits-1", nodes=()))
    verdict = decide_verdict(read_named_run(run))
    assert verdict.state == "held"
    assert verdict.what == "no failure so far; launcher status digits-1 tells who uses its nodes"
