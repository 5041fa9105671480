"""Whom the files belong to: the caller is another user than the engine's, and than root."""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.code.record import read_record
from tests.launcher.docker_runs import remove_left
from tests.launcher.own_script.project import make_project
from tests.launcher.own_script.soak.test_here import SHORT
from tests.launcher.runner import ROOT, Runner

UID = 31234
"""Of a user who has no entry in /etc/passwd, as in many containers."""
SOCKET = Path("/var/run/docker.sock")
ONE = ("--nproc-per-node", "1")


class OtherUser(Runner):
    """Types ``launcher`` as another user, who may use the engine."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder)
        self.python = python
        # Another interpreter than the environment's own finds its packages so.
        self.env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{sysconfig.get_path('purelib')}"
        self.env |= {"HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def argv(self, *argv: str) -> list[str]:
        return [*as_user(), self.python, "-m", "launcher", *argv]


def as_user() -> list[str]:
    groups = ["--groups", str(SOCKET.stat().st_gid)] if SOCKET.exists() else ["--clear-groups"]
    # setpriv itself would still start its program with root's rights.
    return ["setpriv", "--reuid", str(UID), "--regid", str(UID), *groups, "--", "env", "--"]


@functools.cache
def find_python() -> str | None:
    """A Python that the other user may start, with this environment's packages."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return None
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        argv = [*as_user(), python, "-c", "import torch, docker"]
        done = subprocess.run(argv, env=env, cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return python
    return None


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[OtherUser]:
    """The other user, in a folder of theirs with a project."""
    if (python := find_python()) is None:
        pytest.skip("not root, or no Python that another user may start")
    uses_docker = request.node.get_closest_marker("docker")
    engine = request.getfixturevalue("engine") if uses_docker else None
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        user = OtherUser(make_project(Path(name)), python)
        for path in (user.folder, *user.folder.iterdir()):
            os.chown(path, UID, UID)
        yield user
        if engine is not None:
            assert remove_left(engine, user.run_ids()) == []
        assert user.processes() == []


@pytest.mark.parametrize("target", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_files_belong_to_the_caller(other, target):
    (other.folder / "train.py").write_text(SHORT + "open('out.txt', 'w').close()\n")
    other.well("run", "train.py", "--on", target, *ONE)
    assert (other.folder / "out.txt").exists()
    owners = {path: path.lstat().st_uid for path in other.folder.rglob("*")}
    assert {path for path, uid in owners.items() if uid != UID} == set()


def test_a_file_that_the_caller_cannot_read_is_named_and_the_script_runs(other):
    (other.folder / "train.py").write_text(SHORT)
    (other.folder / "notes.txt").touch(mode=0o600)
    done = other.well("run", "train.py", "--on", "local", *ONE)
    assert "the run folder will not hold the code, and --again cannot repeat" in done.stderr
    assert f"{other.folder / 'notes.txt'} is part of the code and cannot be read" in done.stderr
    assert read_record(other.folder / "runs/latest") is None


def test_a_folder_that_takes_no_run_folder_is_named_with_the_option(other):
    os.chown(other.folder, 0, 0)
    told = other.fails(2, "run", "train.py", "--on", "local", *ONE)
    assert f"the folder {other.folder / 'runs'}" in told
    assert "--runs" in told
    with tempfile.TemporaryDirectory() as runs:
        os.chown(runs, UID, UID)
        (other.folder / "train.py").write_text(SHORT)
        other.well("run", "train.py", "--on", "local", *ONE, "--runs", runs)
