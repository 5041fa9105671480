"""Stacks of many ranks become a few groups."""

import pytest

from launcher.contract.reports.look import Frame, Look, RankLook, RankStacks, ThreadStack
from launcher.runs.folder import RunFolder
from launcher.verdict.looks import RankSnapshots, tell_standing
from launcher.verdict.stacks import merge_stacks, render_group, shorten

LIBRARY = "/venv/lib/python3.11/site-packages/torch"
REDUCES = (
    Frame(function="all_reduce", file=f"{LIBRARY}/distributed/distributed_c10d.py", line=3252),
    Frame(function="wrapper", file=f"{LIBRARY}/distributed/c10d_logger.py", line=83),
    Frame(function="main", file="/home/a/train.py", line=88),
)
LOADS = (
    Frame(function="get", file="/usr/lib/python3.11/queue.py", line=171),
    Frame(function="_next", file=f"{LIBRARY}/utils/data/dataloader.py", line=412),
    Frame(function="main", file="/home/a/train.py", line=61),
)


def stacks(rank: int, *frames: Frame, others: tuple[ThreadStack, ...] = ()) -> RankStacks:
    main = ThreadStack(name="MainThread", is_main=True, frames=frames)
    return RankStacks(rank=rank, pid=rank, taken_by="py-spy", threads=(main, *others))


def test_the_same_script_in_another_folder_is_the_same_place():
    there = (*REDUCES[:2], Frame(function="main", file="/scratch/b/train.py", line=88))
    assert len(merge_stacks([stacks(0, *REDUCES), stacks(1, *there)])) == 1


def test_other_threads_are_shown_after_the_main_ones_and_only_where_asked():
    pin = ThreadStack(name="pin", frames=LOADS)
    found = [stacks(0, *REDUCES, others=(pin,)), stacks(1, *REDUCES, others=(pin, pin))]
    assert [group.is_main for group in merge_stacks(found)] == [True]
    main, other = merge_stacks(found, all_threads=True)
    assert (main.is_main, other.name, other.ranks) == (True, "pin", (0, 1))
    assert render_group(other).startswith("ranks 0-1, thread pin: get <- ")


def test_a_group_is_told_by_its_newest_calls_and_few_of_the_library():
    own = tuple(Frame(function=f"f{n}", file="/home/a/train.py", line=n) for n in range(30))
    c_call = Frame(function="poll", file="libc.so")
    for frames, told in (
        ((), "no Python frames"),
        (REDUCES, "all_reduce <- train.py:88"),
        ((REDUCES[2], *REDUCES), "main <- train.py:88 <- distributed_c10d.py:3252 <- train.py:88"),
        ((*LOADS[:2], *LOADS[:1], LOADS[2]), "get <- dataloader.py:412 <- train.py:61"),
        ((*own[:1], *LOADS), "f0 <- f0 <- queue.py:171 <- dataloader.py:412 <- train.py:61"),
        ((c_call, *own[1:3]), "poll <- poll <- train.py:1 <- train.py:2"),
        (own[1:], f"f1 <- {' <- '.join(f'train.py:{n}' for n in range(1, 7))}"),
    ):
        assert shorten(frames) == told
    shown = [f"    /home/a/train.py:{n} f{n}" for n in range(20)]
    for deep, more in ((own[:20], []), (own[:21], ["    and 1 more"]), (own, ["    and 10 more"])):
        (group,) = merge_stacks([stacks(4, *deep)])
        assert render_group(group).splitlines() == [f"rank 4: {shorten(own)}", *shown, *more]


def test_groups_come_with_main_threads_and_large_ones_first():
    nameless = ThreadStack(frames=LOADS)
    pin, put = (ThreadStack(name=name, frames=LOADS) for name in ("pin", "a"))
    main = ThreadStack(name="other name", is_main=True, frames=LOADS)
    found = [stacks(rank, *REDUCES, others=(nameless, pin, put)) for rank in (5, 6)]
    found += [stacks(3, *LOADS), RankStacks(rank=2, pid=2, threads=(main,)), stacks(9)]
    groups = [(one.is_main, one.ranks, one.name) for one in merge_stacks(found, all_threads=True)]
    assert groups == [
        (True, (2, 3), "MainThread"),
        (True, (5, 6), "MainThread"),
        (True, (9,), "MainThread"),
        (False, (5, 6), ""),
        (False, (5, 6), "a"),
        (False, (5, 6), "pin"),
    ]
    assert render_group(merge_stacks(found, all_threads=True)[3]).startswith(
        "ranks 5-6, thread (no name): get <- "
    )


@pytest.mark.parametrize(
    ("ends_in", "threads", "thread", "frames"),
    [
        ("main", [("pin", LOADS)], "", 1),
        ("_shutdown", [], "", 1),
        ("_shutdown", [("pin", LOADS[:1]), ("upload", LOADS)], "upload", 3),  # the script's own
        ("_shutdown", [("", LOADS)], "(no name)", 3),
    ],
)
def test_a_rank_that_ends_stands_where_the_thread_does_that_it_waits_for(
    tmp_path, ends_in, threads, thread, frames
):
    others = tuple(ThreadStack(name=name, frames=found) for name, found in threads)
    main = Frame(function=ends_in, file="/usr/lib/python3.11/threading.py", line=1590)
    look = Look(id="", at=0.0, why="hang", attempt=0, ranks=(RankLook(rank=0, pid=1),))
    seen = RankSnapshots(
        folders={0: tmp_path}, looks={0: look}, stacks={0: stacks(0, main, others=others)}
    )
    (found,) = tell_standing(RunFolder(tmp_path), seen)
    assert (found.thread, len(found.frames)) == (thread, frames)
