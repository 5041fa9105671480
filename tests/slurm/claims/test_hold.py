"""Nodes of a Slurm job that are held: runs in them submit nothing."""

from __future__ import annotations

import pytest

from tests.held import JOB, check_three_runs
from tests.slurm.typist import ALLOCATION, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]
HOLD = ("hold", "hold.yaml", "--name", "dev", "--on", "slurm", "--nproc-per-node", "1")


def hold(typist: Typist, keys: str, *words: str) -> None:
    (typist.folder / "hold.yaml").write_text(f"{JOB}command: [-m, none]\n{keys}")
    typist.well(*HOLD, "--nnodes", "2", *words)


def test_runs_in_a_held_job_submit_nothing_and_its_release_leaves_nothing(typist):
    hold(typist, ALLOCATION)
    check_three_runs(typist)
    submitted = [line for line in typist.cluster.call_lines() if " sbatch " in line]
    jobs = [path for run in (typist.folder / "runs").iterdir() for path in run.glob("slurm/*.job")]
    assert len({path.resolve() for path in jobs}) == 1, submitted
    typist.well("release", "dev")
    wait_until(lambda: not typist.left())
