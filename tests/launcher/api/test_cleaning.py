"""Which runs ``clean`` takes: never one that lives, nor one whose checkpoints are still used."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.api.cleaning import find_old
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.runs.folder import RunFolder
from launcher.targets.room import Left
from tests.launcher.api.conftest import MakeRun

DAY_S = 86_400.0


@pytest.fixture
def make(make_run: MakeRun, tmp_path: Path) -> Callable[..., RunFolder]:
    """Makes a run that ended so many days ago; with ``ended_d`` None it goes on."""

    def made(name: str, ended_d: float | None, *, resumes: str = "") -> RunFolder:
        cause = Cause.COMPLETED if "good" in name else Cause.TRAINING_FAILED
        kept = f"{tmp_path}/{resumes or name}/checkpoints"
        ended = None if ended_d is None else cause
        at = time.time() - (ended_d or 10) * DAY_S
        run, _ = make_run(at, name=name, follows=not ended, ended=ended, checkpoint_dir=kept)
        (run.path / "log").write_bytes(bytes(5000))
        if ended:
            os.utime(run.path / protocol.OUTCOME_FILE, (at, at))
        return run

    return made


def names(found: list[Left]) -> list[str]:
    return sorted(one.run_id for one in found)


def test_age_number_and_state_choose_together_and_a_run_that_lives_stays(make, tmp_path):
    for name, ended_d in (("good-1", 9), ("bad-1", 9), ("good-2", 2), ("bad-2", 1), ("on", None)):
        make(name, ended_d)
    assert names(find_old(tmp_path, (), older_than_s=DAY_S * 5)) == ["bad-1", "good-1"]
    assert names(find_old(tmp_path, (), states=("failed",))) == ["bad-1", "bad-2"]
    assert names(find_old(tmp_path, (), states=("failed",), older_than_s=DAY_S * 5)) == ["bad-1"]
    assert names(find_old(tmp_path, (), keep=0)) == ["bad-1", "bad-2", "good-1", "good-2"]
    assert find_old(tmp_path, (), keep=9) == []
    assert find_old(tmp_path, ()) == []
    assert all(one.size_bytes > 5000 for one in find_old(tmp_path, (), keep=0))


def test_a_run_stays_while_one_that_stays_goes_on_from_its_checkpoints(make, tmp_path):
    make("first", 9)
    make("second", 1, resumes="first")
    assert find_old(tmp_path, (), older_than_s=DAY_S * 5) == []
    assert names(find_old(tmp_path, (), keep=0)) == ["first", "second"]


def test_what_machines_hold_goes_with_its_run_or_by_age_if_no_run_is_known(make, tmp_path):
    make("bad-1", 9)
    make("bad-2", 1)

    def left(run_id: str, *, is_cut: bool = False) -> Left:
        return Left(run_id, "gpu1", 6 * DAY_S, 1, lambda: None, is_cut)

    there = [left("bad-1"), left("bad-2"), left("theirs", is_cut=True)]
    assert names(find_old(tmp_path, there, older_than_s=DAY_S * 5)) == ["bad-1", "bad-1", "theirs"]
    assert find_old(tmp_path, there) == []
    # Cut off: its files are brought here, although nothing says that the run shall go.
    assert names(find_old(tmp_path, [left("bad-2", is_cut=True)])) == ["bad-2"]


def test_clean_shows_sizes_asks_and_removes(launcher, make, tmp_path):
    launcher.env["LAUNCHER_RUNS"] = str(tmp_path)
    run = make("bad-1", 9)
    assert "SIZE" in launcher("ps", "--all", "--long").stdout
    assert "SIZE" not in launcher("ps", "--all").stdout
    told = launcher.fails(2, "clean", "--older-than", "5d")
    assert told == "error: clean asks first, and stdin is no terminal\n  fix: --yes\n"
    assert launcher("clean").returncode == 2, "nothing says which"
    done = launcher("clean", "--older-than", "5d", "--yes")
    row = done.stdout.splitlines()[1].split()
    assert row[:5] == ["bad-1", "here", "failed", "9", "d"]
    assert row[-1] == "KiB"
    assert done.stderr.startswith("removed 1 of 1 (")
    assert not run.path.exists()
    assert not (tmp_path / protocol.LATEST_LINK).is_symlink()
    assert launcher("clean", "--keep", "0").stderr == "nothing to remove\n"
