"""Runs on real hosts with the hosts' own Python: typed as a person would."""

import json
import re

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


TORCHRUN = ("--set", "engine=torchrun", "--set", "start=null", "--set", "max_restarts=0")


@pytest.mark.parametrize(
    ("runtime", "nnodes"),
    [
        ("python", "4"),
        ("python", "2:4"),
        pytest.param("docker", "2", marks=[pytest.mark.docker, pytest.mark.timeout(600)]),
    ],
)
def test_plain_torchrun_meets_at_its_address_or_by_its_endpoint(typist, request, runtime, nnodes):
    if runtime == "docker":
        request.getfixturevalue("four_engines")
        typist.limit_s = 500.0
    typist.write(WHO)
    words = ("--nnodes", nnodes, "--set", f"hosts.runtime={runtime}", *TORCHRUN)
    done = typist.well("run", "job.yaml", *words)
    (world, *_) = re.findall(r"world \[(.*)\] rank \d", done.stdout)
    assert len(set(world.split(", "))) == int(nnodes[-1])
    plan = json.loads((typist.folder / "runs/latest/plan.json").read_text())
    assert ("backend" in plan["nodes"][0]["rendezvous"]) == (":" in nnodes)
