"""``launcher profile`` and ``run --debug`` on hosts: looks that travel by ssh."""

from __future__ import annotations

import pytest

from tests.debugged import STOPS, debug_rank_1
from tests.hosts.typist import PREFIX, STATE
from tests.launcher.looks import TRAINS, check_profile
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts


def test_ranks_of_two_hosts_trace_the_same_steps(typist):
    (typist.folder / "job.yaml").write_text(PREFIX + TRAINS)
    launcher = typist.start("run", "job.yaml", "--nnodes", "2")
    wait_until((typist.folder / "runs/latest").exists)
    check_profile(typist, 2)
    typist("stop", "latest", "--grace", "5")
    assert launcher.wait(60) == 143
    for host in typist.network.hosts:  # checkpoints outlive a run
        host.run("rm", "-rf", f"{STATE}/checkpoints")


def test_a_rank_on_the_second_host_stops_in_pdb_in_this_terminal(typist):
    typist.write(STOPS)
    debug_rank_1(typist, "--nnodes", "2")
