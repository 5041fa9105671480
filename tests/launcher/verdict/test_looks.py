"""What a look says of ranks that were asked to end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.reports.look import FAILED_COLLECTIVES, Look, RankLook
from launcher.plan.torchrun import WorkerLog
from launcher.runs.folder import RunFolder
from launcher.verdict.looks import RankSnapshots, moved_lately, read_frames, tell_recorded

AT = 1000.0


@pytest.mark.parametrize(
    ("began_at", "is_moving"),
    [
        ((AT - 30.0, AT - 0.05), True),
        ((AT - 30.0, AT - 4.9), True),
        ((AT - 30.0, AT - 5.1), False),
        ((), False),
    ],
    ids=str,
)
def test_ranks_that_have_entered_a_collective_lately_do_not_stand_still(began_at, is_moving):
    entries = [{"time_created_ns": round(at * 1e9)} for at in began_at]
    looks = {n: Look(id="x", at=AT, why="stop", attempt=0, ranks=(seen_of(n),)) for n in (0, 1)}
    traces = {0: {"entries": [{"time_created_ns": 1}]}, 1: {"entries": entries}}
    assert moved_lately(RankSnapshots(folders={0: Path()}, looks=looks, traces=traces)) == is_moving


@pytest.mark.parametrize(
    ("wrote_s", "steps", "is_moving"),
    [(0.9, 0, True), (4.9, 0, True), (5.1, 0, False), (-1.0, 0, False), (0.9, 30, False)],
    ids=str,
)
def test_a_script_without_an_optimizer_that_has_just_written_a_line_does_not_stand_still(
    wrote_s, steps, is_moving
):
    ranks = (seen_of(0), replace(seen_of(1), wrote_s=wrote_s, steps=steps))
    looks = {0: Look(id="x", at=AT, why="stop", attempt=0, ranks=ranks)}
    assert moved_lately(RankSnapshots(folders={}, looks=looks)) == is_moving


STACKS = """\
a line of the script
Fatal Python error: Segmentation fault

Current thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/code/train.py", line 2 in inner
  File "/code/train.py", line 3 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
"""


@pytest.mark.parametrize(("said", "lines"), [(STACKS, [519, 2, 3]), ("a line", [])])
def test_the_stack_that_a_scripts_own_faulthandler_has_written_is_read(said, lines, tmp_path):
    (tmp_path / "stderr").write_text(said)
    assert [frame.line for frame in read_frames(tmp_path)] == lines


@pytest.mark.parametrize(("looked_at", "told"), [(AT - 9.0, False), (AT + 9.0, True)])
def test_a_look_from_before_the_last_collective_does_not_say_who_was_missing_in_it(
    tmp_path, looked_at, told
):
    worker = WorkerLog(node_index=0, incarnation=0, attempt=0, folder="rank-0", rank=0)
    (tmp_path / worker.folder).mkdir()
    trace = entries_of(3, AT, is_over=False)
    (tmp_path / worker.folder / FAILED_COLLECTIVES).write_text(json.dumps(trace))
    look = Look(id="x", at=looked_at, why="asked", attempt=0, ranks=(seen_of(1),))
    folders = {1: tmp_path / "looks"}
    seen = RankSnapshots(
        folders=folders, looks={1: look}, traces={1: entries_of(2, looked_at - 1, is_over=True)}
    )
    found = tell_recorded(RunFolder(tmp_path), seen, [worker], None, waits_s=1.0, goes_on=False)
    assert [line.rank for line in found] == ([1] if told else [])


def entries_of(calls: int, last_at: float, *, is_over: bool) -> dict[str, object]:
    """The trace of a rank that has made so many calls; ``is_over`` says it of the last."""
    entry = {"profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"]}
    entry |= {"process_group": ["0", "default_pg"], "time_created_ns": round(last_at * 1e9)}
    entries = [
        {**entry, "collective_seq_id": n, "state": "completed", "retired": True}
        for n in range(1, calls + 1)
    ]
    entries[-1] |= {"state": "completed" if is_over else "scheduled", "retired": is_over}
    return {"entries": entries, "pg_config": {"0": {"ranks": "[0, 1]"}}}


def seen_of(rank: int) -> RankLook:
    return RankLook(rank=rank, pid=1, state="S")
