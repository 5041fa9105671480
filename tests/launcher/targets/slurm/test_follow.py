"""What the files of a run and the queue say of its end."""

import errno
import io
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.ending import Ending, NodeOutcome
from launcher.contract.errors import TargetError
from launcher.contract.process_stat import name_machine
from launcher.contract.states import NodeState
from launcher.follow.console import Console
from launcher.follow.requests import is_stop_requested, write_size
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, process_space
from launcher.targets.slurm import client
from launcher.targets.slurm.client import REASON_OF_STATE, QueuedJob
from launcher.targets.slurm.follow import (
    SlurmDriver,
    decide_end,
    end_by_queue,
    find_end,
    is_all_over,
    is_told_why,
    observe,
    wanted_elements,
)
from launcher.targets.slurm.job_starts import read_jobs, read_starts
from launcher.targets.slurm.queue_watch import QueueWatch, find_held_back
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.target import SlurmTarget
from tests.launcher.targets.slurm.test_plan import plan
from tests.waiting import wait_until


class Folder:
    """A run's folder, filled as batch scripts fill it."""

    def __init__(self, path: Path, nnodes: object = 2) -> None:
        self.run = RunFolder(path / "tiny-1")
        self.plan: LaunchPlan = plan(nnodes=nnodes)
        (self.run.path / "slurm").mkdir(parents=True)
        (self.run.path / "plan.json").write_text(self.plan.to_json())

    def write(self, **files: str) -> None:
        """``j7_0_started="n1"`` writes ``7.0.started``; ``e7_2_0_ended`` is of element 2."""
        for name, text in files.items():
            job, *rest, kind = name[1:].split("_")
            key = f"{job}.{rest[0]}" if name[0] == "j" else f"{job}_{rest[0]}.{rest[1]}"
            (self.run.path / "slurm" / f"{key}.{kind}").write_text(f"{text}\n")

    def node_ended(self, index: int, reason: Cause, detail: str = "") -> None:
        folder = self.run.node_dir(index, 0)
        folder.mkdir(parents=True, exist_ok=True)
        told = NodeOutcome(
            node_index=index,
            incarnation=0,
            cause=reason,
            detail=detail,
            started_at=1.0,
            finished_at=2.0,
        )
        (folder / "outcome.json").write_text(told.to_json())

    def decide(self, *jobs: QueuedJob) -> Cause | None:
        wanted = wanted_elements(self.run, self.plan)
        end = decide_end(self.run, self.plan, read_starts(self.run), jobs, wanted)
        return end and end.cause

    def is_over(self) -> bool:
        return is_all_over(read_starts(self.run), wanted_elements(self.run, self.plan))


def queued(state: str, element: int | None = None) -> QueuedJob:
    return QueuedJob(number=7, element=element, state=state, why="Priority")


def test_a_job_goes_on_until_its_last_start_is_over(tmp_path):
    folder = Folder(tmp_path)
    assert (folder.decide(), folder.is_over()) == (None, False)
    folder.write(j7_0_started="n1 n2", j7_0_stop="preempted", j7_0_ended="143 requeued")
    assert (folder.decide(), folder.is_over()) == (None, False)
    folder.write(j7_1_started="n2 n3")
    assert folder.decide() is None
    folder.write(j7_1_ended="0 over")
    assert (folder.decide(), folder.is_over()) == (Cause.COMPLETED, True)


def test_a_job_that_follows_another_counts_in_its_place(tmp_path):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1 n2", j7_0_ended="143 requeued", j9_0_started="n1 n2")
    assert folder.decide() is None
    folder.write(j9_0_ended="1 over")
    assert folder.decide() is Cause.TRAINING_FAILED
    assert read_jobs(folder.run) == (7, 9)


TWO = {"e7_0_0_started": "n1", "e7_1_0_started": "n2"}
ALL_THREE = {**TWO, "e7_2_0_started": "n3"}


@pytest.mark.parametrize(
    ("nnodes", "files", "reason", "is_over"),
    [
        # A failed training ends the run, though other elements still run.
        ("1:2", {**TWO, "e7_0_0_ended": "1 over"}, Cause.TRAINING_FAILED, False),
        # A killed element does not.
        ("1:2", {**TWO, "e7_0_0_ended": "137 over"}, None, False),
        ("2:3", {**ALL_THREE, "e7_2_0_ended": "198 over"}, None, False),
        # Elements that are too few are not waited for.
        (
            "2:3",
            {**ALL_THREE, "e7_2_0_ended": "198 over", "e7_1_0_ended": "198 over"},
            Cause.DISK_FULL,
            False,
        ),
        # A script that gave up at a time limit, as nothing was saved, was not preempted.
        (
            2,
            {"j7_0_started": "n1 n2", "j7_0_stop": "preempted", "j7_0_ended": "1 over"},
            Cause.TRAINING_FAILED,
            True,
        ),
        # A stop that was asked for is the reason.
        (
            2,
            {"j7_0_started": "n1 n2", "j7_0_stop": "stop-requested", "j7_0_ended": "143 over"},
            Cause.STOP_REQUESTED,
            True,
        ),
    ],
)
def test_what_the_scripts_say_of_their_end_decides_the_run(
    tmp_path, nnodes, files, reason, is_over
):
    folder = Folder(tmp_path, nnodes)
    folder.write(**files)
    assert (folder.decide(), folder.is_over()) == (reason, is_over)


def test_who_sent_a_signal_is_asked_of_the_queue_and_nothing_else(tmp_path):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1 n2", j7_0_ended="143 over")
    starts = read_starts(folder.run)
    preempted = Ending(cause=Cause.PREEMPTED)
    assert not is_told_why(preempted, starts, ())
    assert not is_told_why(preempted, starts, (queued("COMPLETING"),))
    assert is_told_why(preempted, starts, (queued("CANCELLED"),))
    assert folder.decide(queued("CANCELLED")) is Cause.STOP_REQUESTED
    assert is_told_why(Ending(cause=Cause.DISK_FULL), starts, ())
    folder.write(j7_0_stop="interrupted")
    assert is_told_why(Ending(cause=Cause.INTERRUPTED), read_starts(folder.run), ())


@pytest.mark.parametrize(
    ("detail", "reason"),
    [("", Cause.COMPLETED), ("its work was done; the others may still go on", None)],
)
def test_a_node_that_saw_the_run_finish_decides_it(tmp_path, detail, reason):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1 n2")
    folder.node_ended(1, Cause.COMPLETED, detail)
    assert folder.decide() is reason


def test_withdrawn_elements_are_not_waited_for(tmp_path):
    folder = Folder(tmp_path, "1:2")
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2", e7_0_0_ended="0 over")
    assert not folder.is_over()
    write_size(folder.run, 1)
    assert folder.is_over()


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", *REASON_OF_STATE])
def test_a_job_in_a_state_of_an_end_is_over(state):
    assert queued(state).is_over


def test_a_word_of_slurm_for_an_end_has_a_reason(tmp_path):
    end = end_by_queue(Folder(tmp_path).run, (), (queued("NODE_FAIL"),))
    assert (end.cause, end.detail) == (Cause.NODE_LOST, "job 7: a node failed")


def test_a_job_that_never_ran_is_told_with_the_last_line_of_its_log(tmp_path):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1")
    (folder.run.path / "slurm" / "7.log").write_text("module: command not found\n\n")
    end = end_by_queue(folder.run, read_starts(folder.run), ())
    assert "module: command not found" in end.detail


def test_nodes_are_seen_by_their_outcome_their_start_or_the_queue(tmp_path):
    folder = Folder(tmp_path, "1:3")
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2", e7_1_0_ended="0 over")
    folder.node_ended(1, Cause.COMPLETED)
    seen = observe(folder.run, folder.plan, (queued("RUNNING", 0), queued("PENDING", 2)))
    states = [(node.state, node.exit_code, node.detail) for node in seen.nodes]
    assert states == [
        (NodeState.RUNNING, None, "n1"),
        (NodeState.EXITED, 0, ""),
        (NodeState.PENDING, None, "Priority"),
    ]


def test_a_node_that_shows_no_life_beside_others_that_do_is_missing(tmp_path):
    folder = Folder(tmp_path, "2:4")
    folder.plan = plan(nnodes="2:4", slurm={"kind": "allocation"})
    folder.write(j7_0_started="n1 n2 n3")
    for index, age_s in ((0, 0), (1, 2), (2, 40)):
        file = folder.run.node_dir(index, 0) / "alive"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (1e9 - age_s, 1e9 - age_s))
    seen = observe(folder.run, folder.plan, (queued("RUNNING"),))
    assert [(node.state, node.detail) for node in seen.nodes] == [
        (NodeState.RUNNING, "n1"),
        (NodeState.RUNNING, "n2"),
        (NodeState.MISSING, "n3: no sign of life for 40 s"),
        (NodeState.MISSING, "job 7 got 3 nodes"),
    ]


# -- what the queue says, by a stand-in for squeue -------------------------------------------------

NO_MUNGE = """\
squeue: error: If munged is up, restart with --num-threads=10
squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"
slurm_load_jobs error: Protocol authentication error
"""


class Followed:
    """A run that its driver follows, while squeue says what the test has it say."""

    def __init__(self, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("launcher.targets.slurm.queue_watch.LOOK_S", 0.01)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        self._squeue, self._said = tmp_path / "squeue", io.StringIO()
        self.says(NO_MUNGE, code=1)
        console = Console(self._said)
        target = SlurmTarget(tmp_path)
        self.driver = SlurmDriver(folder.run, folder.plan, target, console, SystemClock())

    def says(self, text: str, code: int = 0) -> None:
        new = self._squeue.with_suffix(".new")
        new.write_text(f"#!/bin/sh\ncat >&{2 if code else 1} <<'END'\n{text}END\nexit {code}\n")
        new.chmod(0o755)
        new.rename(self._squeue)

    def wait_told(self, words: str) -> int:
        """Turns until the words are told, and so often again; how often they were told."""
        turns = 0

        def is_told() -> bool:
            nonlocal turns
            turns += 1
            assert self.driver.turn() is None
            return words in self._said.getvalue()

        wait_until(is_told)
        for _ in range(turns):
            assert self.driver.turn() is None
        return self._said.getvalue().count(words)


def test_a_run_ends_well_while_munge_is_down_on_the_login_node(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1 n2")
    followed = Followed(folder, tmp_path, monkeypatch)
    assert followed.wait_told("Protocol authentication error; the run goes on") == 1
    folder.write(j7_0_ended="0 over")
    end = followed.driver.turn()
    followed.driver.end(Ending(cause=Cause.COMPLETED), asked=False)
    assert end == Ending(cause=Cause.COMPLETED)


def test_a_job_that_drained_nodes_keep_waiting_says_so_and_one_that_runs_there_ends_well(
    tmp_path, monkeypatch
):
    folder = Folder(tmp_path)
    (folder.run.path / "slurm/7.job").write_text("\n")
    followed = Followed(folder, tmp_path, monkeypatch)
    why = "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    followed.says(f"7|7|N/A|PENDING|{why}|(null)\n")
    assert followed.wait_told(f"job 7 waits in the queue: {why}") == 1
    # A node that is drained while the job runs there is told of nowhere in the queue.
    followed.says("7|7|N/A|RUNNING|None|(null)\n")
    folder.write(j7_0_started="n1 n2")
    assert followed.wait_told("job 7 runs on n1 n2") == 1
    folder.write(j7_0_ended="0 over")
    end = followed.driver.turn()
    followed.driver.end(Ending(cause=Cause.COMPLETED), asked=False)
    assert end == Ending(cause=Cause.COMPLETED)


# -- without a launcher ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "age_s", "is_over"),
    [("another machine", 1.0, False), ("another machine", 4000.0, True), (None, 1.0, True)],
)
def test_a_run_that_another_machine_is_about_to_submit_has_not_ended(
    tmp_path, monkeypatch, place, age_s, is_over
):
    monkeypatch.setattr(client, "find_jobs", lambda run_id: ())
    folder = Folder(tmp_path)
    at = SystemClock().wall() - age_s
    (folder.run.path / "submitted.json").write_text(json.dumps({"at": at}))
    # As one that has died, where it ran here.
    mark = {"pid": 4711, "start": "then", "sees": f"{place}:pid", "machine": place}
    if place is None:
        mark = {"pid": 4711, "start": "then", "sees": process_space(), "machine": name_machine()}
    (folder.run.path / "launcher.json").write_text(json.dumps(mark))
    stops: list[str] = []
    end = find_end(folder.run, folder.plan, lambda: stops.append("stopped"))
    assert (end is not None, stops) == (is_over, ["stopped"] if is_over else [])


def test_a_stop_while_another_machine_submits_the_run_asks_its_launcher_and_records_no_end(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(client, "find_jobs", lambda run_id: ())
    folder = Folder(tmp_path)
    at = SystemClock().wall() - 1.0
    (folder.run.path / "submitted.json").write_text(json.dumps({"at": at}))
    mark = {"pid": 4711, "start": "then", "sees": "another boot:pid", "machine": "another"}
    (folder.run.path / "launcher.json").write_text(json.dumps(mark))
    with pytest.raises(TargetError, match="STILL RUNNING: tiny-1: its launcher is on another"):
        SlurmTarget(tmp_path).stop("tiny-1", 1.0)
    assert is_stop_requested(folder.run)
    assert folder.run.read_outcome() is None


def test_a_run_whose_folder_was_removed_is_ended_by_the_comment_of_its_jobs(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    followed = Followed(folder, tmp_path, monkeypatch)
    shutil.rmtree(folder.run.path)
    ends: list[Ending | None] = []
    wait_until(lambda: ends.append(followed.driver.turn()) or ends[-1])  # type: ignore[func-returns-value]
    assert ends[-1].cause is Cause.STOP_REQUESTED
    # Where the controller is away too, the launcher says so and ends.
    with pytest.raises(TargetError, match="STILL RUNNING: tiny-1"):
        followed.driver.end(ends[-1], asked=False)
    followed.says("7|launcher:tiny-1\n8|launcher:tiny-2\n")
    calls = tmp_path / "calls"
    (tmp_path / "scancel").write_text(f"#!/bin/sh\necho $* >>{calls}\n")
    (tmp_path / "scancel").chmod(0o755)
    followed.driver.end(ends[-1], asked=False)
    assert calls.read_text() == "7\n"


# -- a second Ctrl-C ------------------------------------------------------------------------------


def said_before_the_stop(folder: Folder) -> str:
    said, at_stop = io.StringIO(), list[str]()

    class Stopping(SlurmTarget):
        def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
            assert (run_id, grace_s, only) == ("tiny-1", 0, None)
            at_stop.append(said.getvalue())

    console, target = Console(said), Stopping(folder.run.path.parent)
    driver = SlurmDriver(folder.run, folder.plan, target, console, SystemClock())
    assert driver.abandon(KeyboardInterrupt(), submitted=True)
    (text,) = at_stop
    return text


def test_a_second_interrupt_says_first_what_it_waits_for_and_how_to_end_it_by_hand(tmp_path):
    folder = Folder(tmp_path)
    # Before sbatch has answered.
    said = said_before_the_stop(folder)
    assert "what was submitted, at most 60 s; by hand: squeue --me, then scancel JOBID" in said
    folder.write(j7_0_started="n1 n2")
    assert said_before_the_stop(folder) == (
        "launcher: cancelled at once: waits until Slurm has ended job 7, at most 60 s; "
        "by hand: scancel 7\n"
    )
    # Inside of an allocation the step alone is ended.
    folder.plan = replace(folder.plan, own=replace(SlurmSettings.of(folder.plan), inside=7))
    said = said_before_the_stop(folder)
    assert "its step of job 7, at most 60 s; by hand: squeue --steps --jobs=7" in said


# -- jobs that are held back -----------------------------------------------------------------------


def held(element: int | None = None, why: str = "BeginTime") -> QueuedJob:
    return QueuedJob(number=7, element=element, state="PENDING", why=why)


def held_back(folder: Folder, *jobs: QueuedJob) -> list[str]:
    return [start.key for start in find_held_back(read_starts(folder.run), jobs)]


def test_a_job_that_slurm_has_requeued_is_held_back_also_without_its_scripts_last_word(tmp_path):
    folder = Folder(tmp_path, "1:2")
    assert held_back(folder, held(1)) == []  # before its first start
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2")
    assert held_back(folder, queued("RUNNING", 0), held(1)) == ["7_1.0"]
    folder.write(e7_1_0_ended="143 requeued", e7_1_0_stop="preempted")
    assert held_back(folder, queued("RUNNING", 0), held(1)) == ["7_1.0"]
    folder.write(e7_1_1_started="n3")
    assert held_back(folder, held(0), held(1)) == ["7_0.0", "7_1.1"]
    assert held_back(folder, held(1, why="Priority")) == []


def test_a_job_that_a_fault_has_ended_waits_until_slurm_may_have_noticed(tmp_path):
    folder = Folder(tmp_path)
    folder.write(j7_0_started="n1 n2", j7_0_fault="193", j7_0_ended="193 requeued")
    assert held_back(folder, held()) == []


@pytest.mark.parametrize("is_refused", [False, True], ids=["done", "refused"])
def test_slurm_is_told_once_for_each_requeue_to_start_what_it_holds_back(
    tmp_path, monkeypatch, is_refused
):
    folder, told = Folder(tmp_path, "1:2"), list[tuple[str, ...]]()

    def start_within(names: Iterable[str], after_s: int) -> None:
        told.append(tuple(names))
        if is_refused:
            raise client.SlurmError("scontrol: Access/permission denied", "", is_away=False)

    monkeypatch.setattr("launcher.targets.slurm.queue_watch.LOOK_S", 0.01)
    monkeypatch.setattr(client, "read_queue", lambda jobs: (held(0), held(1)))
    monkeypatch.setattr(client, "start_within", start_within)
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2")
    watch = QueueWatch(folder.run)

    def has_looked(times: int) -> bool:
        watch.look()
        return watch.looks >= times

    wait_until(lambda: has_looked(3))
    folder.write(e7_1_1_started="n2")
    seen = watch.looks
    wait_until(lambda: has_looked(seen + 3))
    assert told == [("7_0", "7_1"), ("7_1",)]
    assert watch.error is None
    hastened = [] if is_refused else ["7_0.0", "7_1.0", "7_1.1"]
    assert [start.key for start in watch.hastened] == hastened


def test_a_look_at_the_queue_that_fails_is_told_and_tried_again(tmp_path, monkeypatch):
    folder, told = Folder(tmp_path), list[str]()

    def read_queue(jobs: object) -> tuple[QueuedJob, ...]:
        if not told:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return ()

    monkeypatch.setattr("launcher.targets.slurm.queue_watch.LOOK_S", 0.01)
    monkeypatch.setattr(client, "read_queue", read_queue)
    folder.write(j7_0_started="n1")
    watch = QueueWatch(folder.run)

    def has_looked() -> bool:
        watch.look()
        told.extend([watch.error.what] if watch.error else [])
        return watch.looks > 0

    wait_until(has_looked)
    assert "Resource temporarily unavailable" in told[0]
    assert watch.error is None


def test_a_failed_run_tells_what_its_setup_printed_and_nothing_of_slurm(tmp_path):
    folder = Folder(tmp_path)
    own = plan(nnodes=2, slurm={"setup": ["module load cuda"]})
    (folder.run.path / "plan.json").write_text(own.to_json())
    folder.write(j7_0_started="n1 n2", j7_0_ended="1 over")
    (folder.run.path / "slurm/7.log").write_text("module: not found\nsrun: error: n1: task 0\n")
    folder.node_ended(0, Cause.TRAINING_FAILED)
    end = decide_end(folder.run, own, read_starts(folder.run), (), wanted_elements(folder.run, own))
    assert end == Ending(cause=Cause.TRAINING_FAILED, detail="7.log has: module: not found")
