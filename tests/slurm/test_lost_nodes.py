"""Nodes of a run on Slurm that die, are drained, cancelled or taken by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, Cluster
from tests.slurm.typist import ALLOCATION, ARRAY, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

ELASTIC = "nnodes: 1:2\n"


def test_an_allocation_goes_on_without_a_lost_node_before_slurm_notices(typist: Typist) -> None:
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


@pytest.mark.slow
def test_an_allocation_without_the_node_of_its_script_ends_well_all_the_same(
    typist: Typist,
) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "allocation"])
def test_a_lost_node_is_replaced_within_less_than_two_minutes(tmp_path: Path, kind: str) -> None:
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


@pytest.mark.slow
def test_a_cancelled_element_leaves_the_others_and_a_cancelled_job_is_a_stopped_run(
    typist: Typist,
) -> None:
    run_id = typist.start_seen(ELASTIC + ARRAY, 2)
    typist.forget_seen()
    typist.cluster.ask("scancel", f"{typist.job}_1")
    typist.wait_seen(range(1), 1)
    typist.cluster.ask("scancel", typist.job)
    code, _, err = typist.finish()
    assert (code, typist.outcome["reason"]) == (143, "stop-requested"), err
    assert typist.status(run_id)["state"] == "stopped"
    typist.cluster.wait_idle()
    assert typist.left() == []


@pytest.mark.slow
def test_a_run_that_waits_for_drained_nodes_says_so_and_is_stopped_at_once(typist: Typist) -> None:
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


@pytest.mark.slow
def test_a_preempted_run_goes_on_where_the_other_job_has_ended(typist: Typist) -> None:
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
