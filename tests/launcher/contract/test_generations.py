"""Generations on shared storage: each number is taken once."""

import os

from launcher.contract.generations import FOLDER, Fence


def test_a_number_that_another_took_a_moment_ago_is_not_taken_again(tmp_path, monkeypatch):
    fence, listed = Fence(tmp_path, "run"), os.listdir
    Fence(tmp_path, "other").take_next("there")
    looks = iter([True])  # the first comes before the other's create
    monkeypatch.setattr(os, "listdir", lambda folder: [] if next(looks, False) else listed(folder))
    assert fence.take_next("here") == 2


def test_the_newest_generation_names_the_store_it_was_taken_in(tmp_path):
    fence = Fence(tmp_path, "run")
    assert fence.newest() is None
    fence.take_next("one")
    fence.take_next("two")
    newest = fence.newest()
    assert newest
    assert (newest.number, newest.origin) == (2, "two")


def test_a_generation_that_is_just_being_written_has_no_origin_yet(tmp_path):
    fence = Fence(tmp_path, "run")
    fence.take_next("one")
    (tmp_path / FOLDER / "00000002.json").touch()
    newest = fence.newest()
    assert newest
    assert (newest.number, newest.origin) == (2, "")
    assert fence.take_next("three") == 3


def test_foreign_files_in_the_folder_are_no_generations(tmp_path):
    fence = Fence(tmp_path, "run")
    fence.take_next("one")
    for name in ("notes.txt", ".nfs0001", "00000007.json.tmp"):
        (tmp_path / FOLDER / name).touch()
    assert fence.take_next("two") == 2
    assert len(os.listdir(tmp_path / FOLDER)) == 5


def test_what_a_group_has_finished_is_finished_for_those_that_it_left_behind(tmp_path):
    fence = Fence(tmp_path, "run")
    assert [fence.take_next("here") for _ in range(3)] == [1, 2, 3]
    fence.finish(2)
    assert [fence.is_finished(since) for since in (1, 2, 3)] == [True, True, False]
    assert not Fence(tmp_path, "another run").is_finished(1)
    assert fence.take_next("there") == 4, "the mark is no generation"
