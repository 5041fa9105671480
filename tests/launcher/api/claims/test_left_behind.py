"""What a run says of others on its target: only what is proven to be left behind is named."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.runs.folder import LAUNCHER_FILE, RunFolder, process_space

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


def folder_of_the_dead(runs: Path, name: str) -> RunFolder:
    """A run whose launcher has died, as its folder tells it."""
    run = RunFolder(runs / name)
    run.path.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    mark = {"pid": process.pid, "start": "then", "sees": process_space()}
    (run.path / LAUNCHER_FILE).write_text(json.dumps(mark))
    return run


def test_only_a_run_whose_launcher_is_proven_dead_is_named_with_the_proof(launcher, bear, tmp_path):
    launcher.write("print('fine')\n")
    bear("digits-colleague", protocol.CONTAINER_RUN_DIR)  # in a container, seen from outside
    bear("digits-by-hand", str(tmp_path / "nowhere" / "digits-by-hand"))
    dead = folder_of_the_dead(tmp_path / "elsewhere", "digits-dead")
    bear("digits-dead", str(dead.path))
    pid = json.loads((dead.path / LAUNCHER_FILE).read_text())["pid"]
    done = launcher.well("run", "job.yaml", "--on", "local")
    (told,) = [line for line in done.stderr.splitlines() if "left behind" in line]
    assert f"left behind: digits-dead; its launcher has died (its process {pid}" in told
    assert told.endswith(f"launcher stop digits-dead --runs {dead.path.parent}")
    assert "digits-colleague" not in done.stderr
    assert "digits-by-hand" not in done.stderr
