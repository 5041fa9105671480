"""``launcher profile`` as a person types it, on real runs of this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.runner import Runner
from tests.waiting import wait_until

COMPUTES = """
import os, pathlib
def burn():
    return sum(range(10000))
pathlib.Path(os.environ["RUN_DIR"], "ready").touch()
while True:
    burn()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    yield runner
    if runner.run_ids():
        runner("stop", "--grace", "0")
    assert runner.processes() == []


def test_of_any_other_script_seconds_are_recorded(launcher):
    launcher.write(COMPUTES)
    assert launcher("run", "job.yaml", "--on", "local", "--detach").returncode == 0
    run = (launcher.folder / "runs/latest").resolve()
    wait_until((run / "ready").exists)
    done = launcher.well("profile", "latest", "--seconds", "1")
    path = launcher.folder / done.stdout.split(": ")[1].strip()
    frames = json.loads(path.read_text())["shared"]["frames"]
    assert "burn" in {frame["name"] for frame in frames}
