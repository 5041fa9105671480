"""Looks at a node's workers: what is kept, read back, and told on a console."""

import json

import pytest

from launcher.contract.records import dump_record
from launcher.contract.reports import look
from launcher.contract.reports.look import (
    Frame,
    Look,
    LookRequest,
    RankLook,
    RankStacks,
    ThreadStack,
)

FRAMES = tuple(Frame(function=f"f{i}", file="a.py", line=i) for i in range(300))
THREADS = tuple(ThreadStack(name=f"t{i}", frames=FRAMES) for i in range(600))
MAIN = ThreadStack(name="main", is_main=True, frames=FRAMES)


@pytest.mark.parametrize("id", ["1", "hang-1", "A.b_c", "x" * 100])
def test_a_look_is_named_as_a_folder_can_be(id):
    assert LookRequest(id=id).id == id


@pytest.mark.parametrize("id", ["", "..", "-a", "a/b", "a b", "x" * 101])
def test_a_look_is_named_by_nothing_that_leads_elsewhere(id):
    with pytest.raises(ValueError, match="is no name of a folder"):
        LookRequest(id=id)


def test_the_main_threads_newest_calls_are_kept():
    kept = look.cut_threads((*THREADS, MAIN))
    assert [kept[0].name, kept[1].name, kept[-1].name] == ["main", "t0", "t498"]
    assert [len(kept), kept[0].is_main, kept[1].is_main] == [500, True, False]
    assert {thread.frames for thread in kept} == {FRAMES[:200]}
    stacks = RankStacks(rank=0, pid=1, threads=kept)
    assert stacks.main_frames == kept[0].frames
    assert RankStacks(rank=0, pid=1).main_frames == ()
    assert look.render_thread(kept[0])[1] == '  File "a.py", line 1 in f1'


def test_what_is_told_on_a_console_is_heard():
    stacks = RankStacks(rank=1, pid=7, taken_by="py-spy", threads=(MAIN, *THREADS))
    lines = [
        look.render_printed_look(RankLook(rank=rank, pid=7, state="S"), stacks) for rank in (1, 2)
    ]
    console = "".join(f"[agent] {line}\n[0/1] step 3\n" for line in lines)
    heard = look.parse_printed_looks(console)
    assert [one.look for one in heard] == [RankLook(rank=r, pid=7, state="S") for r in (1, 2)]
    told = heard[0].stacks.threads
    assert [(thread.name, len(thread.frames)) for thread in told] == [("main", 15), ("t0", 15)]
    assert told[0].frames == FRAMES[:15]
    assert look.parse_printed_looks("[0/1] step 3\n") == ()
    assert look.parse_printed_looks(console.replace('"pid"', '"was"')) == ()


def test_looks_are_read_once_they_are_finished_oldest_first(tmp_path):
    wrote = [
        Look(id="b", at=1.0, why="hang", attempt=0, ranks=(RankLook(rank=0, pid=1),)),
        Look(id="a", at=2.0, why="asked", attempt=1),
        Look(id="c", at=0.0, why="profile", attempt=1),
    ]
    for one in wrote:
        folder = look.look_dir(tmp_path, one.id)
        folder.mkdir(parents=True)
        (folder / look.LOOK_FILE).write_text(dump_record(one))
    look.look_dir(tmp_path, "unfinished").mkdir()
    assert look.read_looks(tmp_path) == tuple(wrote[:2])
    assert look.read_look(look.look_dir(tmp_path, "c")) == wrote[2]
    assert look.read_look(look.look_dir(tmp_path, "unfinished")) is None
    folder = look.look_dir(tmp_path, "b")
    assert (look.read_stacks(folder, 0), look.read_collectives(folder, 0)) == (None, {})
    (folder / "rank-0.stacks.json").write_text(dump_record(RankStacks(rank=0, pid=1)))
    (folder / "rank-0.collectives.json").write_text(json.dumps({"entries": []}))
    assert look.read_stacks(folder, 0) == RankStacks(rank=0, pid=1)
    assert look.read_collectives(folder, 0) == {"entries": []}


@pytest.mark.parametrize(
    ("recorded", "is_open"),
    [
        ({}, False),
        ({"entries": None}, False),
        ({"entries": ["x"]}, False),
        ({"entries": []}, False),
        ({"entries": [{"state": "completed"}, {"state": "started", "retired": True}]}, False),
        ({"entries": [{"state": "completed"}, {"state": "scheduled"}]}, True),
        ({"entries": [{"state": "started", "retired": False}]}, True),
    ],
)
def test_a_collective_is_open_until_it_is_completed(recorded, is_open):
    assert look.has_open_collective(recorded) is is_open


@pytest.mark.parametrize(
    ("state", "waits_in", "told"),
    [
        ("R", "", ""),
        ("S", "futex_do_wait", ""),
        ("T", "do_signal_stop", "stopped by a signal; kill -CONT continues it"),
        ("D", "nfs_wait", "waits in the kernel, for a disk or a driver: nfs_wait"),
        ("Z", "", "has ended"),
        ("", "", "has ended"),
    ],
)
def test_a_state_that_says_alone_why_nothing_goes_on_is_told(state, waits_in, told):
    assert look.describe_state(RankLook(rank=0, pid=1, state=state, waits_in=waits_in)) == told
