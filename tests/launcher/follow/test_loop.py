"""What a run tells and records, whichever way it begins, goes on and ends."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.ledger import AgentLedger
from launcher.agent.stopping import StopFiles
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import DiskFullError, InputError, TargetError
from launcher.follow.console import Console, paint_prefix
from launcher.follow.endings import FOLDER_REMOVED
from launcher.follow.loop import Follower, create_run, fold, write_outcome
from launcher.follow.nodes import NodeDriver
from launcher.follow.output_buffer import OutputBuffer
from launcher.follow.requests import request_scale, write_size
from launcher.follow.target import Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import LAUNCHER_FILE, RunFolder
from launcher.runs.ledger import agent_ledger, tell_moment
from launcher.verdict import evidence
from tests.launcher.follow.test_agent import RUNS, ScriptedTarget, begin
from tests.launcher.follow.test_console import Terminal, screen
from tests.launcher.runs.test_node_outcomes import Folder
from tests.launcher.worker_ends import worker_end
from tests.waiting import StoppedClock

HEALED = Path(__file__).parents[1] / "runs/healed/agents.jsonl"
ALONE = Traits(goes_on_alone=True)


class Noting(NodeDriver):
    """Notes how its run was ended."""

    _target: Ended

    def end(self, why: Ending, *, stop_requested: bool) -> None:
        self._target.how.append(f"asked: {stop_requested}")
        super().end(why, stop_requested=stop_requested)

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        self._target.how.append(f"submitted: {submitted}")
        return super().abandon(error, submitted=submitted)


class Ended(ScriptedTarget):
    """Notes what it is asked to end; ``error`` is raised by what ``fails`` names."""

    def __init__(self, error: BaseException | None = None, fails: str = "submit") -> None:
        super().__init__(StoppedClock(), [(1, [RUNS, RUNS]), (1, [0, 0])])
        self.error, self.fails, self.graces, self.how = error, fails, list[float](), list[str]()
        self.notes.append("a word of the target")

    def drive(self, run: RunFolder, plan: LaunchPlan, *given: Any) -> Noting:
        return Noting(run, plan, self, *given)

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        if self.error and self.fails == "submit":
            raise self.error
        super().submit(plan, only)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        self.graces.append(grace_s)
        if self.error and self.fails == "stop":
            raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TargetError("no engine\nand more"), (Cause.TARGET_UNREACHABLE, "no engine")),
        (InputError("no such image", "name one"), (Cause.BAD_INPUT, "no such image")),
        (DiskFullError("no room", "make some"), (Cause.DISK_FULL, "no room")),
        (OSError(errno.ENOSPC, "No space left"), (Cause.DISK_FULL, "[Errno 28] No space left")),
        (KeyboardInterrupt(), (Cause.INTERRUPTED, "")),
        (RuntimeError("a mistake"), (Cause.LAUNCHER_LOST, "a mistake")),
    ],
)
def test_a_run_that_could_not_be_submitted_leaves_no_node_and_a_reason(
    tmp_path, make_plan, error, told
):
    target, submitted = Ended(error), list[bool]()
    run, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)
    raised = DiskFullError if isinstance(error, OSError) else type(error)
    with pytest.raises(raised):
        follower.follow(lambda: submitted.append(True))
    outcome = run.read_outcome()
    assert (outcome.cause, outcome.detail.partition(";")[0]) == told
    assert ("a disk is full" in outcome.detail) == (outcome.cause == "disk-full")
    assert (target.graces, target.how, submitted) == ([0], ["submitted: False"], [])
    assert said.getvalue().count("a word of the target") == 1


def test_a_run_whose_folder_was_removed_ends_as_if_a_person_had_stopped_it(tmp_path, make_plan):
    target = Ended()
    run, follower, _ = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)

    def remove() -> None:
        shutil.rmtree(run.path)
        raise FileNotFoundError(run.path)

    outcome = follower.follow(remove)
    assert (outcome.cause, outcome.detail) == (FOLDER_REMOVED.cause, FOLDER_REMOVED.detail)
    assert (target.graces, target.how) == ([0], ["submitted: True"])


def test_a_run_that_cannot_be_ended_shows_what_it_said_all_the_same(
    tmp_path, make_plan, monkeypatch
):
    target = Ended()
    _, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)

    def fail(why: Ending, *, stop_requested: bool) -> None:
        target.notes.append("its last word")
        raise TargetError("no engine")

    monkeypatch.setattr(follower._driver, "end", fail)
    with pytest.raises(TargetError):
        follower.follow()
    assert "its last word" in said.getvalue()


@pytest.mark.parametrize("is_asked", [False, True])
def test_nodes_have_their_time_to_end_only_where_the_training_was_not_done(
    tmp_path, make_plan, is_asked
):
    target, plan = Ended(), make_plan(nnodes=2, engine="agent", stop_grace_s=7)
    _, follower, said = begin(tmp_path, plan, target)
    ask = lambda: follower.interrupt("; again ends it at once")  # noqa: E731
    outcome = follower.follow(ask if is_asked else lambda: None)
    assert outcome.cause == ("interrupted" if is_asked else "completed")
    assert (target.graces, target.how) == ([7 if is_asked else 0], [f"asked: {is_asked}"])
    stopping = "stopping (interrupted), at most 7 s; again ends it at once\n"
    assert (stopping in said.getvalue()) == is_asked


def test_a_target_that_fails_as_a_run_ends_hides_neither_its_end_nor_how_to_end_the_rest(
    tmp_path, make_plan
):
    target = Ended(TargetError("no engine"), "stop")
    run, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), target)
    assert follower.follow().cause == "completed"
    assert f"no engine; what runs on there ends with: launcher stop {run.run_id}" in said.getvalue()


def test_a_size_that_the_target_refuses_ends_no_run(tmp_path, make_plan, monkeypatch):
    target = Ended()
    run, follower, said = begin(tmp_path, make_plan(nnodes="1:2", engine="agent"), target)
    request_scale(run, 1)

    def refuse(nodes: int) -> None:
        raise InputError("no room", "wait")

    monkeypatch.setattr(follower._driver, "scale", refuse)
    assert follower.follow().cause == "completed"
    assert "scaling to 1 node\nlauncher: not scaled: no room\n" in said.getvalue()


def test_a_run_that_still_stops_says_for_what_it_waits(tmp_path, make_plan):
    plan = make_plan(nnodes=2, engine="agent", stop_grace_s=30)
    run, follower, _ = begin(tmp_path, plan, Ended())
    first, second = (StopFiles(run.node_dir(index, 0)) for index in (0, 1))
    nodes, saves = "waiting for the nodes", "the last checkpoint is being saved"
    for write, what in (
        (None, nodes),
        (first._ready, saves),
        (second._ready, saves),
        (first._answer, saves),
        (second._answer, nodes),
    ):
        if write:
            Path(write).parent.mkdir(parents=True, exist_ok=True)
            Path(write).write_text("{}")
        assert follower._describe_stopping(6.4) == f"still stopping, 6 s of at most 30 s: {what}"


@pytest.mark.parametrize(
    ("traits", "workers", "poll_s"),
    [(Traits(), 400, 0.1), *((ALONE, *of) for of in ((4, 0.2), (40, 0.4), (400, 2.0)))],
)
def test_the_files_of_many_workers_are_looked_at_less_often(
    tmp_path, make_plan, monkeypatch, traits, workers, poll_s
):
    monkeypatch.setattr(Ended, "traits", traits)
    plan = make_plan(nnodes=4, nproc_per_node=workers // 4, engine="agent")
    assert begin(tmp_path, plan, Ended())[1]._poll_s == pytest.approx(poll_s)


@pytest.mark.parametrize(
    ("nnodes", "live", "shown"),
    [
        (1, (0,), {0: "line"}),
        (3, (0, 2), {0: "[0/0] line", 2: "[2/2] line"}),
        ("1:3", (0, 2), {1: "[1/1] line", 2: "[2/1] line"}),
    ],
)
def test_a_line_of_a_torchrun_worker_bears_its_node_and_the_rank_that_it_has_now(
    tmp_path, make_plan, nnodes, live, shown
):
    plan = make_plan(nnodes=nnodes, nproc_per_node=1, engine="torchrun")
    run, follower, said = begin(tmp_path, plan, Ended())
    follower._driver.live = live
    for node in shown:
        folder = run.node_dir(node, 0) / "x/attempt_0/0"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("line\n")
        run.console(node, 0).write_text("of the agent, for who asks for it\n")
    follower._show_new()
    assert sorted(said.getvalue().splitlines()) == sorted(shown.values())


def test_only_the_bar_of_rank_0_is_live_and_its_own_next_line_ends_it(tmp_path, make_plan):
    said, target = Terminal(), Ended()
    plan = make_plan(nnodes=2, nproc_per_node=2, engine="agent")
    run = RunFolder(tmp_path / plan.run_id)
    follower = Follower(run, plan, target, Console(said), target._clock, show_agents=True)
    one, agent, last = (paint_prefix(*of) for of in (("[0/1]", 1), ("[1/agent]", 1), ("[0/0]", 0)))
    files = [run.node_dir(0, 0) / f"attempt-0/rank-{rank}/stderr" for rank in (0, 1)]
    for file, text, shown in (
        (files[0], "50%\r60%", ["50%"]),
        (files[1], "70%\r80%", ["50%"]),
        (files[1], ", x\n", [f"{one} 80%, x", "50%"]),
        (run.console(1, 0), "[agent] up\n", [f"{agent} [agent] up", "50%"]),
        (files[0], ", y\n", [f"{last} 60%, y", ""]),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(text)
        follower._show_new()
        assert screen(said.getvalue())[-len(shown) :] == shown


@pytest.mark.parametrize(
    ("workers", "written"), [(1, b"\xff\r no end"), (2, b"[0/0] \\xff\r no end\n")]
)
def test_what_one_worker_alone_writes_is_copied_byte_for_byte(
    tmp_path, make_plan, workers, written
):
    out = OutputBuffer((tmp_path / "out").open("w"))
    plan = make_plan(nnodes=1, nproc_per_node=workers, engine="agent")
    target = ScriptedTarget(StoppedClock(), [(0, [0])])
    run, follower, _ = begin(tmp_path, plan, target, Console(io.StringIO(), out=out))
    folder = run.node_dir(0, 0) / "attempt-0/rank-0"
    folder.mkdir(parents=True)
    (folder / "stdout").write_bytes(b"\xff\r no end")
    follower.follow()
    assert out.close()
    assert (tmp_path / "out").read_bytes() == written


def test_what_is_run_is_checked_before_anything_is_written(tmp_path, make_plan, monkeypatch):
    def fill(folder: Path) -> None:
        (folder / "code").write_text("x")

    for engine in ("agent", "torchrun"):
        plan = replace(make_plan(engine=engine), run_dir=str(tmp_path / engine))
        target = Ended()
        run = create_run(plan, target, fill)
        assert (run.read_plan(), (run.path / "code").read_text()) == (plan, "x")
        assert run.launcher_pid() == os.getpid(), "nobody takes it for one that has ended"
        told = [note for note in target.notes if "engine: torchrun: a lost node" in note]
        assert len(told) == (engine == "torchrun")

    def refuse(plan: LaunchPlan) -> None:
        raise InputError("no value for a secret", "give it")

    monkeypatch.setattr(target, "check", refuse)
    with pytest.raises(InputError):
        create_run(replace(plan, run_dir=str(tmp_path / "none")), target)
    assert not (tmp_path / "none").exists()


def test_an_outcome_says_all_that_is_known_of_its_run(tmp_path, make_plan):
    plan = make_plan(nnodes="1:3", engine="agent")
    lives = (replace(plan.nodes[0], incarnation=3), replace(plan.nodes[1], incarnation=2))
    plan = replace(plan, nodes=(*lives, replace(plan.nodes[2], incarnation=1)), attempt=1)
    run = RunFolder(tmp_path / plan.run_id)
    run.create(plan, "", 5.0)
    for nodes in (2, 3):  # one came back by scaling, and was not lost
        write_size(run, nodes)
    outcome = write_outcome(run, plan, Ending(cause=Cause.COMPLETED, finished_at=8.0), 9.0)
    assert (outcome.run_id, outcome.job, outcome.target) == (run.run_id, plan.job_name, plan.target)
    assert (outcome.attempts, outcome.replaced_nodes, outcome.verdict) == (2, 2, "")
    assert (outcome.started_at, outcome.finished_at) == (5.0, 8.0)
    assert run.read_outcome() == outcome
    # One that scaling brings back just as the run ends has no second life to count.
    for nodes in (1, 3, 1, 3):
        write_size(run, nodes)
    assert write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 9.0).replaced_nodes == 0
    # Of a removed folder only the end is known, and nothing is written anew.
    gone = write_outcome(RunFolder(tmp_path / "gone"), plan, Ending(cause=Cause.COMPLETED), 9.0)
    assert (gone.started_at, gone.finished_at) == (9.0, 9.0)
    assert not (tmp_path / "gone").exists()


def test_a_failed_run_is_told_by_its_nodes_and_its_first_worker(tmp_path, make_plan, monkeypatch):
    folder, plan = Folder(tmp_path / "run"), make_plan(nnodes=1, engine="agent")
    told = {"detail": "all restarts are used up", "restarts": {"hang": 1}}
    folder.node(0, Cause.RESTARTS_EXHAUSTED, worker_end(0, "ValueError: boom"), **told)
    seen = Ending(cause=Cause.TRAINING_FAILED)
    outcome = write_outcome(folder.run, plan, seen, 3.0)
    assert (outcome.cause, outcome.detail) == (Cause.RESTARTS_EXHAUSTED, told["detail"])
    assert (outcome.restarts, outcome.failure.first.exception) == ({"hang": 1}, "ValueError: boom")

    def fail(run: RunFolder, outcome: object) -> None:
        raise ValueError("an odd log")

    monkeypatch.setattr(evidence, "read_run", fail)
    outcome = write_outcome(folder.run, plan, seen, 3.0)
    assert outcome.verdict == "no verdict: ValueError: an odd log"
    assert write_outcome(folder.run, plan, Ending(cause=Cause.COMPLETED), 3.0).failure is None


def test_a_run_whose_end_is_known_or_only_seen_elsewhere_is_not_looked_for(
    tmp_path, make_plan, monkeypatch
):
    plan = make_plan(nnodes=1, engine="agent")
    run, target = RunFolder(tmp_path / "run"), ScriptedTarget(StoppedClock(), [])
    run.create(plan, "", 0.0, follows=True)
    assert fold(run, target, 1.0) is None, "its launcher lives"
    (run.path / LAUNCHER_FILE).unlink()
    monkeypatch.setattr(ScriptedTarget, "traits", Traits(sees_other_machines=False))
    monkeypatch.setattr(RunFolder, "is_elsewhere", True)
    assert fold(run, target, 1.0) is None
    outcome = write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 9.0)
    assert fold(run, target, 1.0) == outcome


@pytest.mark.parametrize(
    ("detail", "memory", "told"),
    [
        ("", "1Gi", "the limit is 1Gi; fix: --set resources.memory=2Gi"),
        ("node 0", "400Mi", "the limit is 400Mi; fix: --set resources.memory=800Mi; node 0"),
        ("node 0", None, "node 0"),
    ],
)
def test_a_run_without_memory_is_told_the_limit_to_set(tmp_path, make_plan, detail, memory, told):
    limit = {"resources": {"memory": memory}} if memory else {}
    plan = make_plan(engine="agent", **limit)
    run = RunFolder(tmp_path / plan.run_id)
    run.create(plan, "", 0.0)
    outcome = write_outcome(run, plan, Ending(cause=Cause.OUT_OF_MEMORY, detail=detail), 9.0)
    assert outcome.detail == told
    assert outcome.verdict, "a failed run has one"
    assert json.loads((run.path / "outcome.json").read_text())["detail"] == told


def test_a_restart_of_workers_is_told_between_what_they_said_before_and_after(tmp_path, make_plan):
    run, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), Ended())
    detail = "restart 1 of 2 (worker-fault): rank 0: exit code 1 (ValueError: boom)"

    def restart() -> None:
        for attempt in (0, 1):
            folder = run.node_dir(0, 0) / f"attempt-{attempt}/rank-0"
            folder.mkdir(parents=True)
            (folder / "stdout").write_text(f"attempt {attempt}\n")
            (folder / "stderr").touch()
        ledger = AgentLedger(agent_ledger(run, 0, 0), StoppedClock(), node_index=0, incarnation=0)
        ledger.write("restart", attempt=0, cause="worker-fault", detail=detail)
        ledger.write("restart", attempt=1, cause="membership")
        later = AgentLedger(
            agent_ledger(run, 1, 0), StoppedClock(now=3.0), node_index=1, incarnation=0
        )
        later.write("restart", attempt=0, cause="hang", detail="restart 1 of 2 (hang): rank 1: x")
        run.node_dir(1, 0).mkdir(parents=True)
        tell_moment(run, 0, 0, at=5.0, text="agent: restart 2 of 2 (hang): rank 0: it hung")

    follower.follow(restart)
    lines = [
        line for line in said.getvalue().splitlines() if "attempt" in line or "restart" in line
    ]
    assert lines == [
        "[0/0] attempt 0",
        f"launcher: {detail}",
        "launcher: restart 2 of 2 (hang): rank 0: it hung",
        "[0/0] attempt 1",
    ]


def test_a_loss_that_the_workers_went_on_from_is_told_once(tmp_path, make_plan):
    run, follower, said = begin(tmp_path, make_plan(nnodes=2, engine="agent"), Ended())

    def heal() -> None:
        run.node_dir(0, 0).mkdir(parents=True)
        ledger = agent_ledger(run, 0, 0)
        ledger.parent.mkdir(exist_ok=True)
        shutil.copy(HEALED, ledger)

    follower.follow(heal)
    told = [line for line in said.getvalue().splitlines() if "went on with step" in line]
    assert told[:2] == [
        "launcher: healed: node 2 is lost: its connection closed and its port refuses; "
        "2 nodes went on with step 66 after 0.73 s",
        "launcher: a node joined; 3 nodes went on with step 148 after 0.80 s",
    ]
    assert len(told) == 4
