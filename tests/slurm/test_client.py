"""What Slurm's own commands answer the launcher."""

from __future__ import annotations

import pytest

from launcher.targets.slurm import client
from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


def test_what_a_person_sees_of_the_queue_by_default_is_not_all_that_there_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
    for name, value in {**own, "SQUEUE_PARTITION": "high", "SCANCEL_INTERACTIVE": "true"}.items():
        monkeypatch.setenv(name, value)
    job = cluster.submit("--partition=main", script="sleep 60")
    wait_until(lambda: cluster.state(job) == "RUNNING")
    assert [one.name for one in client.read_queue([int(job)])] == [job]
    client.cancel([job])
    wait_until(lambda: cluster.queue() == [])
