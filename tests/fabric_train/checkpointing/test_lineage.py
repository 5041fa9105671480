import errno
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.checkpointing.lineage import (
    GENERATIONS_DIR,
    Commit,
    FencedError,
    Lineage,
    Start,
    Writer,
    find_stranger,
)
from launcher.contract import generations


def at(step: int, generation: int, attempt: int = 0) -> Commit:
    return Commit(step=step, writer=Writer(generation, attempt))


def start(generation: int, base: Commit | None, attempt: int = 0) -> Start:
    return Start(writer=Writer(generation, attempt), base=base, at=0.0)


def test_the_agents_generations_lie_where_the_training_looks():
    assert generations.FOLDER == GENERATIONS_DIR


def test_a_start_has_the_generation_of_its_agent_or_takes_the_next(tmp_path):
    folder = tmp_path / "a new" / "folder"
    fence, lineage = generations.Fence(folder, "run"), Lineage(folder)
    assert lineage.begin(None, None) == Writer(1, 0)
    assert fence.take_next("store") == 2
    assert [lineage.begin(2, None) for _ in range(3)] == [Writer(2, n) for n in range(3)]
    assert lineage.begin(7, None) == Writer(3, 0), "the agent took 7 in another folder"
    assert fence.newest().number == 3


def test_what_a_start_went_on_from_is_read_back(tmp_path):
    lineage, before = Lineage(tmp_path), time.time()
    assert lineage.read_starts() == ()
    bases = [None, at(30, 1), at(30, 1), at(40, 3)]
    writers = [lineage.begin(None, base) for base in bases[:2]]
    for damage in ('{"gen', "[]", "{}"):  # cut off, or of no start
        lineage.note_of(lineage.begin(None, at(50, 2))).write_text(damage)
    (tmp_path / "lineage" / "00000009-0000.json").symlink_to("nowhere")  # gone after the listing
    (tmp_path / "generations" / "0-notes.json").touch()
    writers += [lineage.begin(None, base) for base in bases[2:]]
    read_back = lineage.read_starts()
    assert [(each.writer, each.base) for each in read_back] == list(
        zip(writers, bases, strict=True)
    )
    assert all(before <= each.at <= time.time() for each in read_back)
    assert writers[-1] == Writer(7, 0)


def test_a_storage_that_fails_is_told_and_costs_no_note(tmp_path, monkeypatch):
    Lineage(tmp_path).begin(None, None)

    def fail(folder):
        raise PermissionError(errno.EACCES, "no right to list")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(PermissionError):
        Lineage(tmp_path).read_starts()


def test_a_listing_that_the_network_kept_too_long_fences_nobody_and_makes_no_two_writers_of_one(
    tmp_path, monkeypatch
):
    lineage = Lineage(tmp_path)
    taken = [lineage.begin(None, None)]
    listdir = os.listdir
    for generation in (None, 2):
        old = [[]]
        monkeypatch.setattr(
            os, "listdir", lambda folder, old=old: old.pop() if old else listdir(folder)
        )
        taken.append(lineage.begin(generation, None))
    assert taken == [Writer(1, 0), Writer(2, 0), Writer(2, 1)]
    monkeypatch.setattr(os, "listdir", lambda folder: [])
    lineage.check(taken[-1])


@pytest.mark.parametrize("later", ["a generation of the agent's", "a start", "an attempt"])
def test_a_writer_is_fenced_by_whatever_begins_later(tmp_path, later):
    fence, lineage = generations.Fence(tmp_path, "run"), Lineage(tmp_path)
    writer = lineage.begin(fence.take_next("store"), None)
    lineage.check(writer)
    if later == "a start":
        lineage.begin(None, None)
    elif later == "an attempt":
        lineage.begin(1, None)
    else:
        fence.take_next("another store")
    with pytest.raises(FencedError, match="has to end"):
        lineage.check(writer)


def test_an_earlier_generation_cannot_begin_any_more(tmp_path):
    fence = generations.Fence(tmp_path, "run")
    for _ in range(2):
        fence.take_next("store")
    with pytest.raises(FencedError, match="generation 2 has taken over"):
        Lineage(tmp_path).begin(1, None)


HISTORY = (start(1, None), start(2, at(30, 1)), start(2, at(30, 1), 1), start(4, at(50, 2, 1)))


@pytest.mark.parametrize(
    ("commit", "starts", "why"),
    [
        (at(60, 4), HISTORY, None),
        (at(50, 2, 1), HISTORY, None),
        (at(40, 2, 1), HISTORY, None),
        (at(30, 1), HISTORY, None),
        # Committed late, by a group that had been followed.
        (at(60, 2, 1), HISTORY, "the group that followed generation 2, attempt 1 continued from"),
        (at(31, 1), HISTORY, "the group that followed generation 1, attempt 0 continued from"),
        (at(45, 2), HISTORY, "no later group continued from generation 2, attempt 0"),
        (at(55, 3), HISTORY, "no later group continued from generation 3, attempt 0"),
        (at(99, 5), HISTORY, "no later group continued from generation 5, attempt 0"),
        # Notes were lost: the history ends at the base that is known.
        (at(50, 2, 1), HISTORY[-1:], None),
        (at(51, 2, 1), HISTORY[-1:], "the group that followed generation 2"),
        (at(30, 1), HISTORY[-1:], "no later group continued from generation 1"),
        # A copy of one checkpoint has no notes.
        (at(30, 1), (), None),
    ],
    ids=str,
)
def test_only_what_leads_to_the_newest_start_belongs_to_the_history(commit, starts, why):
    reason = find_stranger(commit, starts)
    assert reason.startswith(why) if why else reason is None


@given(data=st.data())
def test_the_history_is_what_the_starts_went_on_from(data):
    history, commits, starts = [], [], []
    for number in range(2, data.draw(st.integers(3, 8))):
        base = data.draw(st.sampled_from([None, *history, *history]))
        history = history[: history.index(base) + 1] if base else []
        writer = Writer(number // 2, number % 2)
        starts.append(Start(writer=writer, base=base, at=0.0))
        for further in data.draw(st.lists(st.integers(1, 9), max_size=3)):
            step = (history[-1].step if history else 0) + further
            history.append(Commit(step=step, writer=writer))
            commits.append(history[-1])
    assert [commit for commit in commits if find_stranger(commit, tuple(starts)) is None] == history
