"""Generations on shared storage: each number is taken once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.agent.roster.fencing import FOLDER, Fence


def test_a_number_is_taken_once_however_many_ask(tmp_path: Path) -> None:
    fences = [Fence(tmp_path, f"run-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda f: [f.take("here") for _ in range(10)], fences))
    numbers = sorted(number for row in taken for number in row)
    assert numbers == list(range(1, 81))


def test_the_newest_generation_names_the_store_it_was_taken_in(tmp_path: Path) -> None:
    fence = Fence(tmp_path, "run")
    assert fence.newest() is None
    fence.take("one")
    fence.take("two")
    newest = fence.newest()
    assert newest
    assert (newest.number, newest.origin) == (2, "two")


def test_a_generation_that_is_just_being_written_has_no_origin_yet(tmp_path: Path) -> None:
    fence = Fence(tmp_path, "run")
    fence.take("one")
    (tmp_path / FOLDER / "00000002.json").touch()
    newest = fence.newest()
    assert newest
    assert (newest.number, newest.origin) == (2, "")
    assert fence.take("three") == 3


def test_foreign_files_in_the_folder_are_no_generations(tmp_path: Path) -> None:
    fence = Fence(tmp_path, "run")
    fence.take("one")
    for name in ("notes.txt", ".nfs0001", "00000007.json.tmp"):
        (tmp_path / FOLDER / name).touch()
    assert fence.take("two") == 2
    assert len(os.listdir(tmp_path / FOLDER)) == 5
