"""What a run says of others on its target: only what is proven to be left behind is named."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from tests.launcher.api.conftest import DEAD, mark

Bear = Callable[[str, str], None]


@pytest.fixture
def bear() -> Iterator[Bear]:
    """Starts a process that bears the marks of a run, as any process of that run does."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run_id: str, run_dir: str) -> None:
        env = {**os.environ, protocol.RUN_ID: run_id, protocol.RUN_DIR: run_dir}
        started.append(
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=env)
        )

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_only_a_run_whose_launcher_is_proven_dead_is_named_with_the_proof(launcher, bear, tmp_path):
    launcher.write("print('fine')\n")
    bear("digits-colleague", protocol.CONTAINER_RUN_DIR)  # in a container, seen from outside
    bear("digits-by-hand", str(tmp_path / "nowhere" / "digits-by-hand"))
    dead = RunFolder(tmp_path / "elsewhere/digits-dead")
    dead.path.mkdir(parents=True)
    mark(dead, DEAD)
    bear("digits-dead", str(dead.path))
    done = launcher.well("run", "job.yaml", "--on", "local")
    (told,) = [line for line in done.stderr.splitlines() if "left behind" in line]
    assert f"left behind: digits-dead; its launcher has died (its process {DEAD}" in told
    assert told.endswith(f"launcher stop digits-dead --runs {dead.path.parent}")
    assert "digits-colleague" not in done.stderr
    assert "digits-by-hand" not in done.stderr
