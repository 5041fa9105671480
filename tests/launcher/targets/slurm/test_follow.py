"""What the files of a run and the queue say of its end."""

import json
import os

import pytest

from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import TargetError
from launcher.contract.process_stat import name_machine
from launcher.follow.requests import is_stop_requested, is_to_be_kept, write_size
from launcher.runs.folder import process_space
from launcher.targets.slurm.client import REASON_OF_STATE, QueuedJob
from launcher.targets.slurm.follow import (
    decide_end,
    find_end,
    observe,
)
from launcher.targets.slurm.job_starts import read_jobs, read_starts
from launcher.targets.slurm.target import SlurmTarget
from tests.launcher.targets.slurm.conftest import Folder


def queued(state: str, element: int | None = None, number: int = 7) -> QueuedJob:
    return QueuedJob(number=number, element=element, state=state, why="Priority")


ONE, STOPPED, FAILED = {"j7_0_started": "n1 n2"}, Cause.STOP_REQUESTED, Cause.TRAINING_FAILED
REQUEUED = {"j9_0_started": "n1", "j9_0_stop": "preempted", "j9_0_ended": "143 requeued"}
TWO = {"e7_0_0_started": "n1", "e7_1_0_started": "n2"}
SETUP = "7.log has: module; not; found"
LISTED = """[ "$1" = --me ] && cat <<'END' || echo '9|9|N/A|RUNNING|None|'
{mine}
END"""
NO_WORD = "ended without recording why; its log says"
ENDED = {"e7_0_0_ended": "0 over", "e7_1_0_ended": "1 over"}
ALL_THREE, FULL = {**TWO, "e7_2_0_started": "n3"}, {"e7_2_0_ended": "198 over"}


@pytest.mark.parametrize(
    ("nnodes", "files", "reason", "is_over"),
    [
        (2, {}, None, False),
        # A job goes on until its last start is over, and one that follows it counts in its place.
        (2, REQUEUED, None, False),
        (2, {**REQUEUED, "j9_1_started": "n1 n2"}, None, False),
        (2, {**REQUEUED, "j9_1_started": "n1 n2", "j9_1_ended": "0 over"}, Cause.COMPLETED, True),
        (2, {**REQUEUED, "j10_0_started": "n1 n2"}, None, False),
        (2, {**REQUEUED, "j10_0_started": "n1", "j10_0_ended": "1 over"}, FAILED, True),
        # A failed training ends the run, though other elements still run.
        ("1:2", {**TWO, "e7_0_0_ended": "1 over"}, FAILED, False),
        # A killed element does not.
        ("1:2", {**TWO, "e7_0_0_ended": "137 over"}, None, False),
        ("2:3", {**ALL_THREE, **FULL}, None, False),
        # Elements that are too few are not waited for.
        ("2:3", {**ALL_THREE, **FULL, "e7_1_0_ended": "198 over"}, Cause.DISK_FULL, False),
        # A script that gave up at a time limit, as nothing was saved, was not preempted.
        (2, {**ONE, "j7_0_stop": "preempted", "j7_0_ended": "1 over"}, FAILED, True),
        (2, {**ONE, "j7_0_stop": "preempted", "j7_0_ended": "143 over"}, Cause.PREEMPTED, True),
        # Who ended a job by a signal is known to its program alone.
        (2, {**ONE, "j7_0_ended": "143 over preempted"}, Cause.PREEMPTED, True),
        (2, {**ONE, "j7_0_ended": "143 over stop-requested"}, STOPPED, True),
        # A stop that was asked for is the reason.
        (2, {**ONE, "j7_0_stop": "stop-requested", "j7_0_ended": "143 over"}, STOPPED, True),
    ],
)
def test_what_the_scripts_say_of_their_end_decides_the_run(
    tmp_path, nnodes, files, reason, is_over
):
    folder = Folder(tmp_path, nnodes, files=files)
    assert (folder.decide(), folder.is_over()) == (reason, is_over)


@pytest.mark.parametrize(
    ("detail", "reason"),
    [("", Cause.COMPLETED), ("its work was done; the others may still go on", None)],
)
def test_a_node_that_saw_the_run_finish_decides_it(folder, detail, reason):
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


@pytest.mark.parametrize(
    ("nnodes", "files", "jobs", "log", "cause", "detail"),
    [
        (2, {}, [queued("NODE_FAIL")], "7", Cause.NODE_LOST, "job 7: a node failed"),
        (2, {}, [], "7", Cause.NODE_LOST, "its launcher ended before it had submitted a job"),
        # A script that ended before its program ran, and a program before its agent.
        (2, {}, [queued("FAILED")], "7", Cause.NODE_LOST, f"job 7 {NO_WORD}: gone"),
        (2, ONE, [], "node-0", Cause.NODE_LOST, f"job 7 {NO_WORD}: gone"),
        ("1:3", ALL_THREE, [], "node-2", Cause.NODE_LOST, f"job 7_2 {NO_WORD}: gone"),
        (
            "1:3",
            ALL_THREE,
            [queued("FAILED", 1)],
            "7_1",
            Cause.NODE_LOST,
            f"job 7_1 {NO_WORD}: gone",
        ),
        # It was cancelled while it waited for its next start, or no more is known of it.
        (2, REQUEUED, [queued("CANCELLED", None, 9)], "9", STOPPED, "job 9: cancelled by scancel"),
        (2, REQUEUED, [], "9", Cause.PREEMPTED, ""),
        # What a script that has ended says counts.
        ("1:2", {**TWO, **ENDED, "e9_0_0_started": "n1"}, [], "7_1", FAILED, "gone"),
    ],
)
def test_jobs_that_are_gone_are_judged_by_slurms_word_or_their_logs(
    tmp_path, nnodes, files, jobs, log, cause, detail
):
    folder = Folder(tmp_path, nnodes, files=files)
    (folder.files / f"{log}.log").write_text("module: command not found\ngone\n\n")
    end = decide_end(folder.run, folder.plan, read_starts(folder.run), tuple(jobs))
    assert end == Ending(cause=cause, detail=detail)


@pytest.mark.parametrize(
    ("setup", "files", "has_agent", "detail"),
    [
        (["module load x"], {"j7_0_ended": "1 over"}, True, SETUP),
        (["module load x"], {"j7_0_ended": "143 over"}, True, ""),
        ([], {"j7_0_ended": "1 over"}, True, ""),
        ([], {"j7_0_ended": "1 over", "j7_0_stop": "preempted"}, True, SETUP),
        ([], {"j7_0_ended": "137 over"}, False, "srun: error: n1: task 0"),
        (["module load x"], {"j7_0_ended": "0 over"}, False, ""),
    ],
)
def test_a_failed_run_tells_what_its_setup_printed_and_nothing_of_slurm(
    tmp_path, setup, files, has_agent, detail
):
    folder = Folder(tmp_path, slurm={"setup": setup}, files={**ONE, **files})
    (folder.files / "7.log").write_text("long ago\nmodule\nnot\nfound\nsrun: error: n1: task 0\n")
    if has_agent:
        folder.node_ended(0, Cause.TRAINING_FAILED)
    end = decide_end(folder.run, folder.plan, read_starts(folder.run))
    assert end is not None
    assert end.detail == detail


def seen(folder: Folder, *jobs: QueuedJob) -> list[tuple[NodeState, str]]:
    nodes = observe(folder.run, folder.plan, jobs).nodes
    return [(node.state, node.detail) for node in nodes]


def test_nodes_are_seen_by_their_outcome_their_start_or_the_queue(tmp_path):
    folder = Folder(tmp_path, "1:4")
    folder.write(e7_0_0_started="n1", e7_0_0_ended="0 over", e7_1_0_started="n2")
    folder.node_ended(0, Cause.COMPLETED)
    assert seen(folder, queued("RUNNING", 1), queued("PENDING", 2)) == [
        (NodeState.EXITED, ""),
        (NodeState.RUNNING, "n2"),
        (NodeState.PENDING, "Priority"),
        (NodeState.MISSING, ""),
    ]


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ({}, "RUNNING", (NodeState.MISSING, "")),
        ({}, "PENDING", (NodeState.PENDING, "Priority")),
        (ONE, "RUNNING", (NodeState.RUNNING, "n2")),
        (ONE, "", (NodeState.RUNNING, "n2")),
        ({"j7_0_started": "n1"}, "RUNNING", (NodeState.MISSING, "job 7 got 1 nodes")),
        (ONE, "COMPLETING", (NodeState.PENDING, "Priority")),
        ({**ONE, "j7_0_ended": "143 requeued"}, "", (NodeState.PENDING, "")),
        ({**ONE, "j7_0_ended": "143 over"}, "", (NodeState.MISSING, "")),
    ],
)
def test_a_node_of_one_job_is_seen_by_the_jobs_start_and_state(folder, files, state, found):
    folder.write(**files)
    assert seen(folder, *([queued(state)] if state else []))[1] == found


def test_a_node_that_shows_no_life_is_missing(tmp_path):
    folder = Folder(tmp_path, 3)
    folder.write(j7_0_started="n1 n2 n3")
    for index, age_s in enumerate((0, 100.0, None)):
        file = folder.run.node_dir(index, 0) / "alive"
        file.parent.mkdir(parents=True)
        if age_s is not None:
            file.touch()
            os.utime(file, (file.stat().st_mtime - age_s, file.stat().st_mtime - age_s))
    first, (state, detail), last = seen(folder, queued("RUNNING"))
    assert (first, last) == ((NodeState.RUNNING, "n1"), (NodeState.RUNNING, "n3"))
    assert (state, detail[:28]) == (NodeState.MISSING, "n2: no sign of life for 100 ")


# -- without a launcher ----------------------------------------------------------------------------


def find(folder: Folder) -> tuple[Cause | None, int]:
    """The cause of the run's end, and how often it was ended, in vain."""
    stops = []

    def stop() -> None:
        stops.append(1)
        raise TargetError("the controller is away", "")

    end = find_end(folder.run, folder.plan, stop)
    return end and end.cause, len(stops)


@pytest.mark.parametrize(
    ("inside", "files", "state", "cause", "asks"),
    [
        # Another run's job has got the number since.
        (0, {}, "RUNNING|None|launcher:other-1", Cause.NODE_LOST, 1),
        (0, {"j7_0_ended": "0 over"}, "", Cause.COMPLETED, 0),
        (0, {"j7_0_ended": "143 requeued"}, "PENDING|None|", None, 1),
        (0, {"j7_0_ended": "198 over"}, "CANCELLED|None|", Cause.DISK_FULL, 0),
        (0, {"j7_0_ended": "143 over", "j7_0_stop": "interrupted"}, "", Cause.INTERRUPTED, 0),
        (0, {}, "RUNNING|None|", None, 1),
        (0, {}, "", Cause.NODE_LOST, 1),
        (7, {"j7_0_ended": "143 over"}, "RUNNING|None|", Cause.PREEMPTED, 0),
    ],
)
def test_the_queue_tells_the_end_of_a_run_where_its_files_do_not(
    tmp_path, commands, inside, files, state, cause, asks
):
    folder = Folder(tmp_path, inside=inside, files={**ONE, **files})
    commands.prints(
        "squeue",
        *([f"7|7|N/A|{state}"] if state else []),
    )
    assert find(folder) == (cause, int(cause is not None and not files))
    assert len(commands.calls("squeue")) == asks


def submit_from(folder: Folder, place: str | None, age_s: float) -> None:
    """As a launcher does there; None is one that has died on this machine."""
    at = SystemClock().wall() - age_s
    (folder.run.path / "submitted.json").write_text(json.dumps({"at": at}))
    here = {"sees": process_space(), "machine": name_machine()}
    mark = {"sees": f"{place}:pid", "machine": place} if place else here
    (folder.run.path / "launcher.json").write_text(
        json.dumps({"pid": 4711, "start": "then", **mark})
    )


@pytest.mark.parametrize(
    ("place", "age_s", "queue", "cause"),
    [
        ("another machine", 290.0, [], None),
        ("another machine", 310.0, [], Cause.NODE_LOST),
        (None, 1.0, [], Cause.NODE_LOST),
        # Its launcher died before it could record the job.
        (None, 1.0, ["9|launcher:digits-0a1b2c"], None),
    ],
)
def test_a_run_that_is_about_to_be_submitted_has_not_ended(
    folder, commands, place, age_s, queue, cause
):
    submit_from(folder, place, age_s)
    commands.does("squeue", LISTED.format(mine="\n".join(queue)))
    assert find(folder) == (cause, int(cause is not None))
    assert read_jobs(folder.run) == ((9,) if queue else ())


def test_a_stop_while_another_machine_submits_the_run_asks_its_launcher_and_records_no_end(
    folder, commands
):
    submit_from(folder, "another machine", 1.0)
    words = f"STILL RUNNING: {folder.run.run_id}: its launcher is on another"
    with pytest.raises(TargetError, match=words):
        SlurmTarget(folder.run.path.parent).stop(folder.run.run_id, 1.0)
    assert is_stop_requested(folder.run)
    assert not is_to_be_kept(folder.run)
    assert folder.run.read_outcome() is None
