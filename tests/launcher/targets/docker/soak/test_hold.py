"""Containers that are held, and runs in them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.held import JOB, SUMS, folder_of_hold
from tests.launcher.docker_runs import containers, remove_left
from tests.launcher.runner import Runner

pytestmark = pytest.mark.docker
HOLD = ("hold", "--name", "dev", "--on", "docker", "--nproc-per-node", "1")
LEAVES = """
import pathlib
left = [pathlib.Path(folder, "left") for folder in ("/tmp", "/dev/shm")]
for path in left:
    assert not path.exists(), path
    path.mkdir()
    (path / "more").touch()
print("nothing is left", flush=True)
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[Runner]:
    """A hold ``dev`` of two containers, which a release leaves nothing of."""
    launcher = Runner(tmp_path_factory.mktemp("dev"))
    launcher.well(*HOLD, "--nnodes", "2")
    yield launcher
    assert launcher("stop", "dev").returncode == 0
    assert remove_left(engine, launcher.run_ids()) == []


def test_runs_in_held_containers_start_none(held, engine):
    held.write(LEAVES, JOB)
    for _ in range(2):
        done = held("run", "job.yaml", "--in", "dev")
        assert done.stdout.count("nothing is left") == 2, done.stderr
    run_ids = held.run_ids()
    hold = folder_of_hold(held).name
    assert len(containers(engine, hold)) == 2
    assert not [run for run in run_ids if run != hold and containers(engine, run)]
    again = held.well("run", "--again", "latest")
    assert "the hold dev on docker" in again.stderr
    # Not so local, which lets a run write anywhere.
    held.write(SUMS, JOB + "checkpoint_dir: /elsewhere\n")
    told = held.fails(2, "run", "job.yaml", "--in", "dev")
    assert "checkpoint_dir: dev has not mounted /elsewhere" in told
    assert ", free" in held("status", "dev").stdout
