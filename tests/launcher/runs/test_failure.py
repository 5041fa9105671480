import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import WorkerEnd, last_of
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.failure import decide_report, read_report
from launcher.runs.folder import RunFolder
from tests.launcher.torchrun_report import report, worker
from tests.launcher.worker_ends import worker_end

PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:18333"


def failure(rank: int, exception: str, at: float = 0.0, exit_code: int = 1) -> WorkerEnd:
    cause = "terminated" if exit_code == -15 else "exit"
    return worker_end(
        rank, exception, local_rank=rank, exit_code=exit_code, failed_at=at, cause=cause
    )


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([failure(0, PEER, at=1), failure(3, "ValueError: boom", at=2)], 3),
        ([failure(0, "ValueError: late", at=2), failure(1, "ValueError: early", at=1)], 1),
        ([failure(0, "x", at=1, exit_code=-15), failure(2, "killed by signal 9", 9, -9)], 2),
        ([failure(0, PEER, at=2), failure(1, PEER, at=1)], 1),
        ([failure(4, "OSError", at=1), failure(2, "OSError", at=1)], 2),
        # Asked to end by an agent that had seen the other first.
        ([failure(0, "ended by its agent", at=1, exit_code=-15), failure(2, PEER, at=2)], 2),
    ],
)
def test_the_cause_is_told_from_those_that_fell_with_it(failures, first):
    found = decide_report(failures, ())
    assert found.first.rank == first
    assert len(found.collateral) == len(failures) - 1


def test_a_rank_that_left_with_exit_code_0_is_named_where_the_others_only_missed_it():
    left = failure(0, "", at=10.0, exit_code=0)
    hung = replace(failure(2, "", at=15.5, exit_code=-9), cause=Cause.HANG)
    for victim, how in ((failure(1, PEER, at=13.5), "3.5 s before rank 1 failed"), (hung, "5.5 s")):
        first = decide_report([victim, left], ()).first
        assert how in first.headline
        assert first.headline.startswith("rank 0 on node 0: it had ended with exit code 0, ")
    own = failure(1, "KeyError: 'sample 13'", at=13.5)
    assert decide_report([own, left], ()) == decide_report([own], ())
    earlier = failure(1, PEER, at=2.0)
    assert decide_report([earlier, left], ()) == decide_report([earlier], ())


def test_a_worker_may_take_a_while_to_end_after_it_has_left_the_others():
    for left_at, how in ((16.0, "0.0 s before rank 1 failed"), (18.5, "0.0 s"), (18.6, "")):
        left = [failure(number, "", at=left_at + number, exit_code=0) for number in (2, 0)]
        asked = failure(3, "", at=1.0, exit_code=-15)
        first = decide_report([failure(1, PEER, at=13.5), asked, *left], ()).first
        assert (first.rank == 0) == bool(how)
        assert how in first.headline
    asked_only = decide_report([asked, *left], ())
    assert (asked_only.first, asked_only.collateral) == (asked, ())
    gone = replace(left[1], cause=Cause.TERMINATED)
    assert decide_report([failure(1, PEER, at=13.5), gone], ()).ranks == (
        failure(1, PEER, at=13.5),
    )


@pytest.mark.parametrize(
    ("exception", "first"), [("ValueError: boom", 1), (PEER, 0), ("lightning.SIGTERMException", 0)]
)
def test_a_rank_that_torchrun_ended_on_its_way_out_is_still_the_cause(
    folder, make_plan, exception, first
):
    trace = "Traceback (most recent call last):\n{}\n"
    folder.console(0, report(worker(0, 1), worker(1, -15)))
    folder.worker(0, 0, "stderr.log", trace.format(PEER), at=100.0)
    folder.worker(0, 1, "stderr.log", trace.format(exception), at=101.0)
    assert read_report(folder.run, make_plan(nproc_per_node=2)).first.rank == first


class Folder:
    """A run folder as torchrun leaves it."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)

    def write(self, name: str, text: str, at: float = 100.0) -> None:
        path = self.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at, at))

    def console(self, node: int, text: str) -> None:
        self.write(f"nodes/{node}/0/console.log", text)

    def worker(self, node: int, local_rank: int, name: str, text: str, at: float = 100.0) -> None:
        self.write(f"nodes/{node}/0/id_x/attempt_0/{local_rank}/{name}", text, at)


@pytest.fixture
def make_plan(make_plan: Callable[..., LaunchPlan]) -> Callable[..., LaunchPlan]:
    """Plans for plain torchrun, whose workers leave tracebacks and a report on the console."""
    return functools.partial(make_plan, engine="torchrun")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "digits-0a1b2c")


def test_error_files_win_over_logs(folder, make_plan):
    folder.console(0, report(worker(0, 1)))
    message: dict[str, Any] = {"message": {"message": "KeyError: 'x'\nmore", "extraInfo": {}}}
    folder.worker(0, 0, "error.json", json.dumps(message))
    folder.worker(0, 0, "stderr.log", "nothing here")
    found = read_report(folder.run, make_plan(nproc_per_node=1))
    assert found.first.exception == "KeyError: 'x'"


def test_an_exception_is_the_last_ones_line_that_names_it(folder, make_plan):
    folder.console(0, report(worker(2, 1)))
    trace = "Traceback (most recent call last):"
    for attempt, (text, told) in enumerate(
        [
            (
                f"{trace}\nKeyError: old\n{trace}\n  a.Error: x\nm.BadError: new\nends\n",
                "m.BadError: new",
            ),
            ("KeyError: no traceback\n", "exit code 1"),
            (f"{trace}\nKeyError: one\nValueError: after\n", "ValueError: after"),
            (f"{trace}\n[rank2]:KeyboardInterrupt\n", "KeyboardInterrupt"),
            (f"{trace}\n2Error: x\n", "exit code 1"),
        ]
    ):
        folder.write(f"nodes/0/0/id_x/attempt_{attempt}/2/stderr.log", text)
        (first,) = read_report(folder.run, make_plan(nproc_per_node=4)).ranks
        assert (first.exception, first.rank, first.local_rank) == (told, 2, 2)
        assert (first.attempt, first.failed_at, first.cause) == (attempt, 100.0, "script-error")
        assert first.log.endswith(f"attempt_{attempt}/2/stderr.log")


def test_a_worker_without_a_log_is_reported_by_torchrun_alone(folder, make_plan):
    folder.console(0, report(worker(1, -9)))
    folder.worker(0, 0, "stderr.log", "of another")
    (first,) = read_report(folder.run, make_plan(nproc_per_node=2)).ranks
    assert (first.exception, first.cause, first.failed_at) == ("SIGKILL (9)", "killed", 0.0)
    assert (first.log, first.log_tail, first.attempt) == ("", (), 0)


def test_what_workers_of_earlier_attempts_said_is_no_part_of_a_killed_nodes_report(
    folder, make_plan
):
    trace = "Traceback (most recent call last):\nValueError: {}\n"
    for attempt, local_rank in ((0, 0), (1, 1), (1, 0)):
        name = f"nodes/1/0/id_x/attempt_{attempt}/{local_rank}/stderr.log"
        folder.write(name, trace.format(f"{attempt}{local_rank}"), at=9.0 - local_rank)
    ends = read_report(folder.run, make_plan(nnodes=2, nproc_per_node=2)).ranks
    assert [(end.rank, end.local_rank, end.exception) for end in ends] == [
        (3, 1, "ValueError: 11"),
        (2, 0, "ValueError: 10"),
    ]


def test_an_agent_that_never_had_workers_is_reported_by_its_own_lines(folder, make_plan):
    folder.console(0, "usage: torchrun\nerror: unrecognized arguments\n")
    found = read_report(folder.run, make_plan())
    assert found.first is None
    assert found.console_tail[-1] == "error: unrecognized arguments"


def test_a_crash_is_shown_by_its_stack(folder, make_plan):
    folder.write("nodes/0/0/attempt-0/rank-0/stderr", "a warning\n")
    folder.write("nodes/0/0/attempt-0/rank-0/crash.txt", "Segmentation fault\n" + "  File x\n" * 20)
    end = {"attempt": 0, "rank": 0, "local_rank": 0, "exit_code": -11, "failed_at": 9.0}
    end |= {"was_asked": False}
    folder.write("nodes/0/0/attempt-0/rank-0/exit.json", json.dumps(end))
    first = read_report(folder.run, make_plan(engine="agent", nproc_per_node=1)).first
    assert first.log.endswith("rank-0/crash.txt")
    assert first.log_tail == ("Segmentation fault", *["  File x"] * 11)


def test_an_empty_folder_gives_an_empty_report(folder, make_plan):
    assert asdict(read_report(folder.run, make_plan())) == {
        "first": None,
        "collateral": (),
        "console_tail": (),
    }


def test_a_warning_is_not_the_last_line_that_matters():
    numpy = "m.py:7: UserWarning: Failed to initialize NumPy: No module named 'numpy'"
    assert last_of(["out of patience", numpy, "  cpu = _conversion()", ""]) == "out of patience"
    assert last_of([numpy, "  cpu = _conversion()"]) == ""


def test_the_last_words_are_an_error_and_not_the_fix_below_it():
    said = ["train: unrecognized arguments: --nosuch 3", "  fix: python -m train --help lists them"]
    assert last_of(said) == said[0]
