"""Hosts that are lost, and networks that are not what they seem: real jobs, real means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.places import Network, wait_until
from tests.hosts.test_run_python import WHO
from tests.hosts.typist import Typist

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]

UNTIL_ONE_IS_LOST = """
import os, pathlib, sys, time
world = int(os.environ["WORLD_SIZE"])
print("world", world, flush=True)
pathlib.Path(os.environ["RUN_DIR"], "up-" + os.environ["RANK"]).touch()
time.sleep(300 if world == 3 else 1)
"""


@pytest.mark.slow  # 41 s; a host without power, and one that stands still, are lost in every CI
def test_an_elastic_job_goes_on_when_a_host_is_cut_off(typist: Typist) -> None:
    typist.write(UNTIL_ONE_IS_LOST, "agent: {detection_limit_s: 5}\n")
    launcher = typist.start("run", "job.yaml", "--nnodes", "1:3")
    hosts = typist.network.hosts
    up = lambda: [p for h in hosts for p in h.home.glob(".launcher/runs/*/up-*")]  # noqa: E731
    wait_until(lambda: len(up()) == 3, 120)
    hosts[2].set_link(up=False)
    try:
        assert launcher.wait(200) == 0
        # The host that nobody hears has ended its node by itself.
        wait_until(lambda: not hosts[2].commands(), 30)
    finally:
        hosts[2].set_link(up=True)
    assert typist.outcome["reason"] == "completed"
    assert "world 2" in typist("logs", "latest").stdout
    # What it wrote is brought and removed when it is back.
    assert typist("stop", "latest").returncode == 0


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
