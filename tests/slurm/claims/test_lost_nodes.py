"""Nodes of a run on Slurm that die, are drained, cancelled or taken by others."""

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.typist import ALLOCATION, ARRAY, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
ELASTIC = "nnodes: 1:2\n"


def test_an_allocation_goes_on_without_a_lost_node_before_slurm_notices(typist):
    typist.start_seen(ELASTIC + ALLOCATION, 2)
    _, second = typist.node_of(f"{typist.job}.0")
    typist.forget_seen()
    typist.cluster.kill_node(second)
    typist.wait_seen(range(1), 1)
    assert not typist.cluster.node_state(second).startswith("down")
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    # Until its node is there again, or down, Slurm calls the job COMPLETING.
    typist.cluster.start_node(second)
    typist.cluster.wait_idle()


@pytest.mark.parametrize("kind", ["array", "allocation"])
def test_a_lost_node_is_replaced_within_less_than_two_minutes(tmp_path, kind):
    """A cluster of its own, as Slurm has it where nothing is set: others here hold back for 5 s."""
    cluster = Cluster(held_back_s=120)
    typist = Typist(tmp_path, cluster)
    try:
        cluster.start()
        typist.start_seen((ELASTIC + ARRAY) if kind == "array" else ("nnodes: 2\n" + ALLOCATION), 2)
        name = f"{typist.job}_1" if kind == "array" else typist.job
        # The element's own, or that of the job's script: no script is left to requeue it.
        node = typist.node_of(f"{name}.0")[0]
        typist.forget_seen()
        cluster.kill_node(node)
        if kind == "array":
            typist.wait_seen(range(1), 1)  # the other goes on
        typist.wait_said(f"job {name} was requeued; begins in 15 s")
        # It begins long before Slurm's two minutes are over.
        wait_until(lambda: f"{name}.1" in typist.starts())
        assert node not in typist.node_of(f"{name}.1")
        typist.wait_seen(range(2), 2)
        told = [line for line in cluster.call_lines() if " scontrol update " in line]
        assert [line.split()[1:] for line in told] == [
            ["scontrol", "update", f"JobId={name}", "StartTime=now+15"]
        ]
        typist.go()
        code, _, err = typist.finish()
        assert code == 0, err
        cluster.start_node(node)
        cluster.wait_idle()
    finally:
        typist.end()
        cluster.close()
