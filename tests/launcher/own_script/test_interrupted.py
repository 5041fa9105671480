"""Ctrl-C while the code of a run is read and kept."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from launcher.runs.folder import RunFolder
from tests.launcher.own_script.project import make_project
from tests.launcher.own_script.soak.test_here import SHORT
from tests.waiting import wait_until

SLOW_GIT = """#!/bin/sh
case "$*" in *ls-files*) echo $$ >>"$MARK"; exec sleep 60 ;; esac
pwd
"""


def test_ctrl_c_while_the_code_is_read_leaves_nothing(launcher, tmp_path):
    launcher.folder = make_project(tmp_path)
    (launcher.folder / "train.py").write_text(SHORT)
    (launcher.folder / ".git").mkdir()
    git, mark = tmp_path / "bin" / "git", tmp_path / "mark"
    git.parent.mkdir()
    git.write_text(SLOW_GIT)
    git.chmod(0o755)
    launcher.env |= {"PATH": f"{git.parent}{os.pathsep}{os.environ['PATH']}", "MARK": str(mark)}
    before = set(launcher.folder.iterdir())
    child = launcher.start("run", "train.py", "--on", "local", "--nproc-per-node", "1")
    wait_until(mark.exists)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    for pid in mark.read_text().split():
        # From a terminal git gets the signal too; here only the launcher did.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    assert child.returncode == 130, told
    assert b"interrupted" in told
    assert set(launcher.folder.iterdir()) == before


def test_a_run_folder_that_is_not_filled_is_not_left(tmp_path, make_plan):
    def interrupt(folder: Path) -> None:
        (folder / "job.json").touch()
        raise KeyboardInterrupt

    plan = make_plan()
    run = RunFolder(tmp_path / "runs" / plan.run_id)
    with pytest.raises(KeyboardInterrupt):
        run.create(plan, "", 0.0, interrupt)
    assert list((tmp_path / "runs").iterdir()) == []
