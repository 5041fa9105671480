"""``profile`` and ``run --debug`` on Slurm: they travel by the shared file system."""

from __future__ import annotations

import pytest

from tests.debugged import STOPS, debug_rank_1
from tests.launcher.looks import TRAINS, check_profile
from tests.slurm.typist import ALLOCATION, PREFIX
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm


def test_ranks_of_two_nodes_trace_the_same_steps(typist):
    (typist.folder / "job.yaml").write_text(f"name: tiny\nstop_grace_s: 5\n{ALLOCATION}{TRAINS}")
    typist.start("run", "job.yaml", "--on", "slurm", "--nnodes", "2", "--nproc-per-node", "1")
    wait_until((typist.folder / "runs/latest").exists)
    check_profile(typist, 2)
    typist("stop", "latest", "--grace", "0")
    assert typist.finish()[0] == 143


def test_a_rank_on_the_second_node_stops_in_pdb_in_this_terminal(typist):
    typist.write(STOPS, PREFIX + ALLOCATION)
    debug_rank_1(typist, "--on", "slurm", "--nnodes", "2")
