"""Nodes of a run on Slurm that die, are drained, cancelled or taken by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, Cluster, wait_until
from tests.slurm.typist import ALLOCATION, ARRAY, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SLOW = pytest.mark.slow
ELASTIC = "nnodes: 1:2\n"
BOTH = pytest.mark.parametrize("kind", [ALLOCATION, ARRAY], ids=["allocation", "array"])


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
@SLOW
def test_an_allocation_without_the_node_of_its_script_ends_well_all_the_same(
    typist: Typist,
) -> None:
    run_id = typist.start_seen(ELASTIC + ALLOCATION, 2)
    first, _ = typist.node_of(f"{typist.job}.0")
    typist.forget_seen()
    typist.cluster.kill_node(first)
    wait_until(lambda: any(typist.run.glob("seen-*")), 120)
    typist.go()
    code, _, err = typist.finish(120)
    assert code == 0, err
    assert typist.status(run_id)["state"] == "succeeded"
    typist.cluster.start_node(first)
    typist.cluster.wait_idle()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=SLOW)], ids=["its-script", "another"])
def test_a_job_of_a_fixed_size_starts_again_on_other_nodes(typist: Typist, lost: int) -> None:
    typist.start_seen("nnodes: 2\n" + ALLOCATION, 2)
    node = typist.node_of(f"{typist.job}.0")[lost]
    typist.forget_seen()
    typist.cluster.kill_node(node)
    # Slurm notices, and requeues the whole job: no script needs to be left for that.
    typist.wait_seen(range(2), 2, 120)
    assert node not in typist.node_of(f"{typist.job}.1")
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    typist.cluster.start_node(node)
    typist.cluster.wait_idle()


@pytest.mark.slow
def test_a_lost_element_is_replaced_and_joins_while_the_other_goes_on(typist: Typist) -> None:
    typist.start_seen(ELASTIC + ARRAY, 2)
    (lost,) = typist.node_of(f"{typist.job}_1.0")
    typist.forget_seen()
    typist.cluster.kill_node(lost)
    typist.wait_seen(range(1), 1)
    # Slurm notices, requeues the element, and it starts on the third node.
    typist.wait_seen(range(2), 2, 120)
    assert typist.node_of(f"{typist.job}_1.1") != [lost]
    assert f"{typist.job}_0.1" not in typist.starts()
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    typist.cluster.start_node(lost)
    typist.cluster.wait_idle()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "allocation"])
def test_a_run_with_a_lost_node_need_not_wait_for_two_minutes(tmp_path: Path, kind: str) -> None:
    """A cluster of its own, as Slurm has it where nothing is set: others here hold back for 5 s."""
    cluster = Cluster(held_back_s=120)
    typist = Typist(tmp_path, cluster)
    try:
        cluster.start()
        typist.start_seen((ELASTIC + ARRAY) if kind == "array" else ("nnodes: 2\n" + ALLOCATION), 2)
        name = f"{typist.job}_1" if kind == "array" else typist.job
        node = typist.node_of(f"{name}.0")[-1]
        typist.forget_seen()
        cluster.kill_node(node)
        typist.wait_said(f"job {name} was requeued; begins in 15 s", 90)
        # It begins long before Slurm's two minutes are over.
        wait_until(lambda: f"{name}.1" in typist.starts(), 60)
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
def test_a_cancelled_element_leaves_the_others_at_work(typist: Typist) -> None:
    typist.start_seen(ELASTIC + ARRAY, 2)
    typist.forget_seen()
    typist.cluster.ask("scancel", f"{typist.job}_1")
    typist.wait_seen(range(1), 1)
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    typist.cluster.wait_idle()


@pytest.mark.slow
@BOTH
def test_a_cancelled_job_is_a_stopped_run(typist: Typist, kind: str) -> None:
    run_id = typist.start_seen(ELASTIC + kind, 2)
    typist.cluster.ask("scancel", typist.job)
    code, _, err = typist.finish()
    assert (code, typist.outcome["state"]) == (143, "stopped"), err
    assert typist.outcome["reason"] == "stop-requested"
    assert typist.status(run_id)["state"] == "stopped"
    typist.cluster.wait_idle()
    assert typist.left() == []


@pytest.mark.slow
@SLOW
def test_a_drained_node_ends_its_run_and_takes_no_other(typist: Typist) -> None:
    typist.start_seen(ELASTIC + ARRAY, 2)
    (node,) = typist.node_of(f"{typist.job}_1.0")
    typist.cluster.drain(node)
    assert typist.cluster.node_state(node) == "draining"
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    wait_until(lambda: typist.cluster.node_state(node) == "drained")


@pytest.mark.slow
@SLOW
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


@pytest.mark.parametrize(
    "kind", [pytest.param(ALLOCATION, id="allocation"), pytest.param(ARRAY, id="array")]
)
@SLOW
def test_a_preempted_run_goes_on_where_the_other_job_has_ended(typist: Typist, kind: str) -> None:
    typist.start_seen("nnodes: 2\n" + kind, 2)
    typist.forget_seen()
    other = typist.cluster.submit("--partition=high", "--exclusive", "--nodes=3", script="sleep 2")
    wait_until(lambda: typist.cluster.state(other) == "COMPLETED", 90)
    typist.wait_seen(range(2), 2)
    assert {key.rpartition(".")[2] for key in typist.starts()} == {"0", "1"}
    typist.go()
    code, _, err = typist.finish()
    assert code == 0, err
    assert "is queued again: preempted" in err
