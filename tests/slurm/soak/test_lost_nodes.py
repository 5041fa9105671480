"""Nodes of a run on Slurm that die, are drained, cancelled or taken by others."""

import pytest

from tests.slurm.claims.test_lost_nodes import ELASTIC
from tests.slurm.cluster import NODES
from tests.slurm.typist import ALLOCATION, ARRAY
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_an_allocation_without_the_node_of_its_script_ends_well_all_the_same(typist):
    run_id = typist.start_seen(ELASTIC + ALLOCATION, 2)
    first, _ = typist.node_of(f"{typist.job}.0")
    typist.forget_seen()
    typist.cluster.kill_node(first)
    wait_until(lambda: any(typist.run.glob("seen-*")))
    typist.go()
    code, _, err = typist.finish(120)
    assert code == 0, err
    assert typist.status(run_id)["state"] == "succeeded"
    typist.cluster.start_node(first)
    typist.cluster.wait_idle()


def test_a_cancelled_element_leaves_the_others_and_a_cancelled_job_is_a_stopped_run(typist):
    run_id = typist.start_seen(ELASTIC + ARRAY, 2)
    typist.forget_seen()
    typist.cluster.ask("scancel", f"{typist.job}_1")
    typist.wait_seen(range(1), 1)
    typist.cluster.ask("scancel", typist.job)
    code, _, err = typist.finish()
    assert (code, typist.outcome["cause"]) == (143, "stop-requested"), err
    assert typist.status(run_id)["state"] == "stopped"
    typist.cluster.wait_idle()
    assert typist.left() == []


def test_a_run_that_waits_for_drained_nodes_says_so_and_is_stopped_at_once(typist):
    for node in NODES:
        typist.cluster.drain(node, "no power")
    typist.write("", "name: tiny\nnnodes: 2\nnproc_per_node: 1\n")
    typist.start("run", "job.yaml", "--on", "slurm")
    wait_until(typist.run_ids)
    wait_until(lambda: typist.cluster.queue())
    (run_id,) = typist.run_ids()
    wait_until(lambda: typist.status(run_id)["nodes"][0]["state"] == "pending")
    wait_until(lambda: typist.cluster.calls["squeue"] >= 3)
    assert typist("stop", run_id).returncode == 0
    code, _, err = typist.finish()
    assert code == 143
    assert "waits in the queue: " in err
    assert typist.cluster.queue() == []


def test_a_preempted_run_goes_on_where_the_other_job_has_ended(typist):
    typist.start_seen("nnodes: 2\n" + ARRAY, 2)
    typist.forget_seen()
    other = typist.cluster.submit("--partition=high", "--exclusive", "--nodes=3", script="sleep 2")
    wait_until(lambda: typist.cluster.state(other) == "COMPLETED")
    typist.wait_seen(range(2), 2)
    assert {key.rpartition(".")[2] for key in typist.starts()} == {"0", "1"}
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    assert "is queued again: preempted" in err


def test_a_job_that_is_not_requeued_says_that_another_took_its_nodes(typist):
    typist.start_seen("nnodes: 2\nslurm: {kind: allocation, exclusive: true, requeue: false}\n", 2)
    typist.cluster.submit("--partition=high", "--exclusive", "--nodes=3", script="sleep 2")
    code, _, err = typist.finish()
    assert (code, typist.outcome["cause"]) == (143, "preempted"), err
    typist.cluster.wait_idle()
