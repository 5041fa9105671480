"""Runs on real hosts with the hosts' own Python: typed as a person would."""

import pytest

pytestmark = pytest.mark.hosts
WHO = """
import os, socket
import torch.distributed as dist
dist.init_process_group("gloo")
mine = [socket.gethostname()]
all_of_them = [None] * dist.get_world_size()
dist.all_gather_object(all_of_them, mine)
print("world", sorted(sum(all_of_them, [])), "rank", dist.get_rank(), flush=True)
dist.destroy_process_group()
"""


def test_an_elastic_job_runs_on_all_hosts(typist, four_hosts):
    typist.write(WHO)
    done = typist.well("run", "job.yaml", "--nnodes", "2:4")
    assert "world ['gpu1', 'gpu2', 'gpu3', 'gpu4'] rank 0" in done.stdout
    # In one line, before anything starts.
    checked = "checked: ssh, torch, ports, leases, clocks, the way of each to gpu1"
    assert f"hosts gpu1, gpu2, gpu3, gpu4 ({checked})" in done.stderr.splitlines()[0]
