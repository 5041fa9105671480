"""What a run on Slurm tells while it is followed, when it counts as ended, and what ends it."""

import io
import shutil

import pytest

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import TargetError
from launcher.follow.console import Console
from launcher.runs.ledger import LAUNCHER_LEDGER
from launcher.targets.slurm import follow
from launcher.targets.slurm.follow import QueueWatch, SlurmDriver
from launcher.targets.slurm.target import SlurmTarget
from tests.launcher.targets.slurm.conftest import Folder
from tests.waiting import StoppedClock, wait_until

NO_MUNGE = (
    "squeue: error: If munged is up, restart with --num-threads=10",
    'squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"',
    "slurm_load_jobs error: Protocol authentication error",
)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_S", 0.01)
    monkeypatch.setattr(follow, "LATE_S", 0.1)


class Followed:
    """A run that its driver follows, while the commands say what the test has them say."""

    def __init__(self, folder: Folder, clock: Clock | None = None) -> None:
        self._said, asked = io.StringIO(), list[tuple[object, ...]]()

        class Target(SlurmTarget):
            def stop(self, *of: object) -> None:  # type: ignore[override]
                asked.append(("stop", *of))

            def scale(self, *of: object) -> bool:  # type: ignore[override]
                asked.append(("scale", *of))
                return True

        self.asked = asked
        target, console = Target(folder.run.path.parent), Console(self._said)
        self.driver = SlurmDriver(folder.run, folder.plan, target, console, clock or SystemClock())

    def told(self) -> list[str]:
        return self._said.getvalue().splitlines()

    def wait_told(self, words: str) -> None:
        wait_until(lambda: self.driver.turn() or words in self._said.getvalue(), self.told)

    def wait_ended(self) -> Ending:
        ends: list[Ending | None] = [None]
        wait_until(lambda: ends.append(self.driver.turn()) or ends[-1])  # type: ignore[func-returns-value]
        assert ends[-1] is not None
        return ends[-1]


def test_each_step_of_a_job_is_told_once_and_a_wait_is_in_the_timeline(folder, commands):
    (folder.files / "7.job").write_text("\n")
    followed = Followed(folder)
    why = "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    commands.prints("squeue", f"7|7|N/A|PENDING|{why}|(null)")
    followed.wait_told(f"job 7 waits in the queue: {why}")
    # A node that is drained while the job runs there is told of nowhere in the queue.
    commands.prints("squeue", "7|7|N/A|RUNNING|None|(null)")
    folder.write(j7_0_started="n1 n2")
    followed.wait_told("job 7 runs on n1 n2")
    commands.prints("squeue", *NO_MUNGE, code=1)
    followed.wait_told("Protocol authentication error; the run goes on")
    commands.prints("squeue", "7|7|N/A|PENDING|BeginTime|(null)")
    folder.write(j7_0_stop="preempted", j7_0_ended="143 requeued")
    followed.wait_told("job 7 waits in the queue: BeginTime")
    followed.wait_told("job 7 was requeued; begins in 15 s or when nodes are free")
    commands.prints("squeue", "7|7|N/A|RUNNING|None|(null)")
    folder.write(j7_1_started="n2 n3", j7_1_ended="195 requeued")
    followed.wait_told("job 7 is queued again: store-lost")
    folder.write(j7_2_started="n2 n3", j7_2_ended="143 requeued")
    followed.wait_told("job 7 is queued again: preempted")
    folder.write(j7_3_started="n2 n3", j7_3_ended="0 over")
    assert followed.driver.turn() == Ending(cause=Cause.COMPLETED)
    followed.driver.end(Ending(cause=Cause.COMPLETED), stop_requested=False)
    assert followed.asked == []
    error = "; ".join(line.removeprefix("squeue: ") for line in NO_MUNGE)
    assert sorted(line.removeprefix("launcher: ") for line in followed.told()) == [
        "job 7 is queued again: its time limit",
        "job 7 is queued again: preempted",
        "job 7 is queued again: store-lost",
        "job 7 runs on n1 n2",
        "job 7 runs on n2 n3, start 2",
        "job 7 runs on n2 n3, start 3",
        "job 7 runs on n2 n3, start 4",
        "job 7 waits in the queue: BeginTime",
        f"job 7 waits in the queue: {why}",
        "job 7 was requeued; begins in 15 s or when nodes are free",
        "job 7 was submitted; squeue --jobs=7",
        f"squeue: {error}; the run goes on",
        "the controller answers again",
    ]
    assert why in (folder.run.path / protocol.LEDGER_DIR / LAUNCHER_LEDGER).read_text()
    assert "scontrol update JobId=7 StartTime=now+15" in commands.calls("scontrol")


def test_a_run_whose_jobs_left_the_queue_without_a_word_has_ended(folder, commands):
    folder.write(j7_0_started="n1 n2")
    (folder.files / "7.log").write_text("module: command not found\n\n")
    followed = Followed(folder)
    commands.prints("squeue", "7|7|N/A|RUNNING|None|")
    wait_until(lambda: [followed.driver.turn(), *commands.calls("squeue")][1:])
    assert followed.driver.turn() is None
    commands.prints("squeue", "7|7|N/A|FAILED|None|")
    words = "job 7 ended without recording why; its log says: module: command not found"
    assert followed.wait_ended() == Ending(cause=Cause.NODE_LOST, detail=words)


def test_nodes_that_still_run_have_the_grace_to_notice_the_runs_end(tmp_path, commands):
    folder, clock = Folder(tmp_path, "1:2"), StoppedClock(1000.0)
    folder.write(e7_0_0_started="n1", e7_1_0_started="n2", e7_0_0_ended="1 over")
    followed = Followed(folder, clock)
    for _ in range(2):
        assert followed.driver.turn() is None
        clock.sleep(folder.plan.stop_grace_s / 2)
    assert followed.driver.turn() is None
    clock.sleep(1)
    end = followed.driver.turn()
    assert end is not None
    followed.driver.end(end, stop_requested=False)
    followed.driver.end(end, stop_requested=True)
    followed.driver.scale(1)
    grace_s, run = folder.plan.stop_grace_s, folder.run
    stops = [("stop", run.run_id, 0), ("stop", run.run_id, grace_s)]
    assert followed.asked == [*stops, ("scale", run, folder.plan, 1)]


def test_a_run_whose_folder_was_removed_is_ended_by_the_comment_of_its_jobs(folder, commands):
    clock, run_id = StoppedClock(1000.0), folder.run.run_id
    target, console = SlurmTarget(folder.run.path.parent), Console(io.StringIO())
    driver = SlurmDriver(folder.run, folder.plan, target, console, clock)
    shutil.rmtree(folder.run.path)
    assert driver.turn() is None
    clock.sleep(60)
    end = driver.turn()
    assert end is not None
    assert end.cause is Cause.STOP_REQUESTED
    # Where the controller is away too, the launcher says so and ends.
    commands.prints("squeue", *NO_MUNGE, code=1)
    with pytest.raises(TargetError, match=f"STILL RUNNING: {run_id}") as caught:
        driver.end(end, stop_requested=False)
    assert caught.value.hint == f"squeue --me --format='%F %k' has it as launcher:{run_id}"
    commands.prints("squeue", f"7|launcher:{run_id}", "8|launcher:digits-2")
    driver.end(end, stop_requested=False)
    assert commands.calls("scancel") == ["scancel 7"]


# -- a second Ctrl-C ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "inside", "by_hand"),
    [
        ({}, 0, "squeue --me, then scancel JOBID"),
        ({"j7_0_started": "n1 n2"}, 0, "scancel 7"),
        # Inside of an allocation the step alone is ended.
        ({}, 7, "squeue --steps --jobs=7 names its step; scancel 7.STEP"),
    ],
)
def test_a_second_interrupt_says_that_it_waits_and_how_to_end_the_run_by_hand(
    tmp_path, files, inside, by_hand
):
    folder = Folder(tmp_path, inside=inside, files=files)
    followed = Followed(folder)
    assert followed.driver.abandon(KeyboardInterrupt(), submitted=True)
    assert followed.told() == [
        "launcher: cancelled at once: waits at most 60 s until Slurm has ended it; "
        f"by hand: {by_hand}"
    ]
    assert followed.asked == [("stop", folder.run.run_id, 0)]


def test_only_a_job_that_was_not_submitted_ends_with_its_launcher(folder):
    driver = Followed(folder).driver
    assert driver.abandon(TargetError("sbatch: refused", ""), submitted=False)
    assert not driver.abandon(TargetError("squeue: away", ""), submitted=True)
    assert not driver.abandon(RuntimeError("a defect"), submitted=False)


# -- jobs that are held back -----------------------------------------------------------------------


@pytest.mark.parametrize("is_refused", [False, True], ids=["done", "refused"])
def test_slurm_is_told_once_for_each_requeue_to_start_what_it_holds_back(
    tmp_path, commands, is_refused
):
    folder = Folder(tmp_path, "1:6")
    why = ("BeginTime", "BeginTime", "Priority", "BeginTime", "BeginTime")
    queue = (f"7|7|{index}|PENDING|{text}|" for index, text in enumerate(why))
    commands.prints("squeue", *queue, "8|7|5|RUNNING|BeginTime|")
    if is_refused:
        commands.prints("scontrol", "slurm_update error: Access/permission denied", code=1)
    folder.write(**{f"e7_{index}_0_started": "n1" for index in (0, 1, 2, 3, 5)})
    # Slurm may not have noticed a fault of the platform yet, and 4 has not started before.
    folder.write(e7_3_0_fault="193", e7_3_0_ended="193 requeued", e7_1_0_ended="143 requeued")
    watch = QueueWatch(folder.run)

    def wait_for_looks(times: int) -> list[str]:
        seen: list[str] = []

        def are_over() -> bool:
            watch.ask_if_due()
            seen.extend(commands.calls())
            return sum(line.startswith("squeue") for line in seen) > times

        wait_until(are_over)
        return [line for line in seen if line.startswith("scontrol")]

    assert wait_for_looks(3) == ["scontrol update JobId=7_0,7_1 StartTime=now+15"]
    folder.write(e7_1_1_started="n2")
    assert wait_for_looks(3) == ["scontrol update JobId=7_1 StartTime=now+15"]
    assert watch.error is None
    hastened = [] if is_refused else ["7_0.0", "7_1.0", "7_1.1"]
    assert [start.key for start in watch.hastened] == hastened


def test_a_look_at_the_queue_that_fails_is_told_and_tried_again(folder, commands):
    watch = QueueWatch(folder.run)
    folder.write(j7_0_started="n1")
    # As where a file server is away.
    (folder.files / "cluster").mkdir()
    wait_until(lambda: watch.ask_if_due() or watch.error)  # type: ignore[func-returns-value]
    assert watch.error is not None
    assert watch.error.what.startswith("Slurm cannot be asked: ")
    (folder.files / "cluster").rmdir()
    wait_until(lambda: watch.ask_if_due() or watch.jobs is not None)  # type: ignore[func-returns-value]
    assert watch.error is None
