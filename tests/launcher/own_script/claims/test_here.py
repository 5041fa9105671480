"""A script of one's own on this machine: the same words as local processes and in Docker."""

import os
from pathlib import Path

import pytest

from launcher.api.starting.planning import note_no_checkpoint
from launcher.job.spec import JobSpec
from tests.launcher.own_script.project import (
    ARGUMENTS,
    LOSSES,
    TWO,
    TWO_BY_TWO,
    losses_in,
    make_project,
)
from tests.launcher.runner import Runner

DOCKER = pytest.mark.docker


@pytest.fixture
def project(launcher: Runner, tmp_path: Path) -> Runner:
    launcher.folder = make_project(tmp_path)
    return launcher


# In Docker the tests below run a script of the folder, and README's commands train.
@pytest.mark.parametrize(
    ("target", "nodes"), [("local", TWO_BY_TWO), pytest.param("docker", TWO, marks=DOCKER)]
)
def test_a_folder_with_a_script_trains_to_the_losses_that_it_has(project, target, nodes):
    done = project.well("run", "train.py", "--on", target, *nodes, *ARGUMENTS)
    written = (project.folder / "out.txt").read_text().split()
    assert losses_in(done.stdout) == written == LOSSES
    assert (project.folder / "out.txt").stat().st_uid == os.getuid()
    assert project.outcome["run_id"].startswith("train-")
