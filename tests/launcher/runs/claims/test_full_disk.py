"""Runs whose folder lies on a small disk that fills up: what the launcher says, and leaves."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.targets import process_table
from tests.disks import Disk, mounted
from tests.launcher.runner import Runner

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
JOB = "name: tiny\nnproc_per_node: 2\nmax_restarts: 1000\nstop_grace_s: 5\n"
TWO_NODES = JOB + "nnodes: 2\n"
FILL = """
import os, pathlib, time
def fill():
    with open(os.path.join(os.environ["RUN_DIR"], "filler"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
"""
FILLING = (
    FILL
    + """
if os.environ["RANK"] == "2":
    fill()
time.sleep(600)
"""
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "small")
    yield runner
    left = runner.processes()
    process_table.send(tuple(left), signal.SIGKILL)
    assert left == []


def test_a_worker_that_fills_the_disk_ends_the_run_as_what_it_is(launcher, disk):
    launcher.write(FILLING, TWO_NODES)
    done = launcher("run", "job.yaml", "--on", "local")
    assert done.returncode == 198, done.stderr
    outcome = launcher.outcome
    assert (outcome["state"], outcome["cause"]) == ("failed", "disk-full")
    headline = done.stderr.partition("FAILED")[2].splitlines()[0]
    assert "(disk-full; node " in headline
    for part in ("the disk at ", " free of 8.0 MiB", "filler (", "fault: platform"):
        assert part in headline
    assert "guards it" not in done.stdout + done.stderr
    assert disk.leftovers() == []


def test_a_disk_that_is_full_before_the_start_starts_nothing_and_leaves_nothing(launcher, disk):
    launcher.write("print('never')", TWO_NODES)
    disk.fill()
    told = launcher.fails(198, "run", "job.yaml", "--on", "local")
    error = told.partition("error: ")[2]
    assert error.startswith("the disk at ")
    assert " is full: 0 bytes and " in error
    assert "fix: make room there, or name another folder (--runs DIR)" in error
    assert [path.name for path in disk.path.iterdir()] == ["filler"]
