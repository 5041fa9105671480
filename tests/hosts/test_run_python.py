"""Runs on real hosts with the hosts' own Python: typed as a person would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.places import Network
from tests.hosts.typist import Typist

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


def test_an_elastic_job_runs_on_all_hosts(typist: Typist, four_hosts: Network) -> None:
    typist.write(WHO)
    done = typist("run", "job.yaml", "--nnodes", "2:4")
    assert done.returncode == 0, done.stderr
    assert "world ['gpu1', 'gpu2', 'gpu3', 'gpu4'] rank 0" in done.stdout
    # In one line, before anything starts.
    checked = "checked: ssh, torch, ports, leases, clocks, the way of each to gpu1"
    assert f"hosts gpu1, gpu2, gpu3, gpu4 ({checked})" in done.stderr.splitlines()[0]


@pytest.mark.slow  # addresses are chosen in tests/launcher/targets/hosts
def test_nodes_meet_on_the_network_that_they_reach_each_other_by(
    tmp_path: Path, two_networks: Network
) -> None:
    typist = Typist(tmp_path, two_networks)
    typist.write(WHO, "engine: agent\n")
    done = typist("run", "job.yaml", "--nnodes", "2")
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "runs/latest/plan.json").read_text())
    addresses = [host.training_address for host in two_networks.hosts]
    assert [node["local_addr"] for node in plan["nodes"]] == addresses
    assert ["NCCL_SOCKET_IFNAME", "=train0"] in plan["nodes"][1]["env"]
    typist.assert_nothing_left()
