"""Nodes of a Slurm job that are held: runs in them submit nothing."""

import pytest

from tests.held import JOB, TRAINS, folder_of_hold
from tests.slurm.typist import ARRAY, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]
HOLD = ("hold", "hold.yaml", "--name", "dev", "--on", "slurm", "--nproc-per-node", "1")


def hold(typist: Typist, keys: str, *words: str) -> None:
    (typist.folder / "hold.yaml").write_text(f"{JOB}command: [-m, none]\n{keys}")
    typist.well(*HOLD, "--nnodes", "2", *words)


def test_a_lost_node_of_a_held_array_comes_back_and_the_run_goes_on(typist):
    hold(typist, ARRAY)
    folder = folder_of_hold(typist)
    (job,) = (path.stem for path in (folder / "slurm").glob("*.job"))
    lost = (folder / "slurm" / f"{job}_1.0.started").read_text().strip()
    typist.write(TRAINS, JOB + "max_restarts: 2\n")
    process = typist.start("run", "job.yaml", "--in", "dev")
    wait_until(lambda: (typist.run / "up-1-0").exists())
    typist.cluster.kill_node(lost)
    wait_until(lambda: (typist.run / "up-1-1").exists())
    typist.go()
    assert process.wait(60) == 0, typist.said.read_text()
    assert typist("stop", "dev").returncode == 0
    typist.cluster.start_node(lost)
    typist.cluster.wait_idle()
