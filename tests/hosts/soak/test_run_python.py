"""Runs on real hosts with the hosts' own Python: typed as a person would."""

from __future__ import annotations

import json

import pytest

from tests.hosts.claims.test_run_python import WHO
from tests.hosts.typist import Typist

pytestmark = pytest.mark.hosts


def test_nodes_meet_on_the_network_that_they_reach_each_other_by(tmp_path, two_networks):
    typist = Typist(tmp_path, two_networks)
    typist.write(WHO, "engine: agent\n")
    typist.well("run", "job.yaml", "--nnodes", "2")
    plan = json.loads((tmp_path / "runs/latest/plan.json").read_text())
    addresses = [host.training_address for host in two_networks.hosts]
    assert [node["local_addr"] for node in plan["nodes"]] == addresses
    assert ["NCCL_SOCKET_IFNAME", "=train0"] in plan["nodes"][1]["env"]
    typist.assert_nothing_left()
