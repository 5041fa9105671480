"""Hosts and engines that are started anew in the middle of a run: Docker brings nodes back.

All are slow: about a minute each, after an image was sent to two engines.
"""

from __future__ import annotations

import json

import pytest

from tests.hosts.places import Network
from tests.hosts.steps import Steps
from tests.hosts.typist import Typist

pytestmark = [pytest.mark.hosts, pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.mark.slow  # a node's container comes back with Docker's engine
def test_a_host_that_is_started_anew_joins_its_run_again_without_any_launcher(
    typist: Typist, four_engines: Network
) -> None:
    run = Steps(typist, "docker")
    run.detach()
    four_engines.hosts[1].reboot()
    run.wait_for(0, 1)
    status = typist("status", run.run_id)
    assert "node 1.0: running" in status.stdout, status.stdout + status.stderr
    rows = json.loads(typist("hosts", "--json").stdout)
    assert [len(row["leases"]) for row in rows[:2]] == [1, 1]
    run.finish()


@pytest.mark.slow  # the same, while its keeper lives
def test_a_node_outlives_its_engine(typist: Typist, four_engines: Network) -> None:
    run = Steps(typist, "docker")
    run.detach()
    four_engines.hosts[1].restart_engine()
    run.wait_for(0, 1)
    # The first keeper is still there, and nobody had to look.
    assert "node 1.0: running" in typist("status", run.run_id).stdout
    run.finish()


@pytest.mark.slow  # a host without power is a lost node in every CI
def test_a_followed_run_replaces_a_node_whose_engine_was_started_anew(
    typist: Typist, four_engines: Network
) -> None:
    run = Steps(typist, "docker")
    run.follow()
    four_engines.hosts[1].restart_engine()
    run.wait_for(0, 1)
    run.finish()
