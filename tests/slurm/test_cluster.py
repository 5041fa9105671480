"""The test cluster is what it says: three nodes that run jobs, die, and come back."""

from __future__ import annotations

import shutil
import subprocess
import sys

import psutil
import pytest

from tests.launcher.runner import ROOT
from tests.slurm.cluster import NODES, Cluster, wait_until

pytestmark = pytest.mark.slurm


def test_three_nodes_are_idle(cluster: Cluster) -> None:
    assert [cluster.node_state(name) for name in NODES] == ["idle"] * 3


def test_a_job_runs_on_the_nodes_that_it_asks_for(cluster: Cluster) -> None:
    output = cluster.folder / "named"
    job = cluster.submit(
        "--nodes=3",
        script=f"srun --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME >>{output}'",
    )
    wait_until(lambda: cluster.state(job) == "COMPLETED")
    assert sorted(output.read_text().split()) == list(NODES)
    cluster.wait_idle()


@pytest.mark.slow
def test_a_killed_node_is_noticed_and_comes_back(cluster: Cluster) -> None:
    job = cluster.submit("--nodelist=n2", "--no-requeue", script="srun sleep 300")
    wait_until(lambda: any("sleep 300" in line for line in cluster.left()))
    cluster.kill_node("n2")
    assert cluster.left() == []
    wait_until(lambda: cluster.node_state("n2").startswith("down"))
    wait_until(lambda: cluster.state(job) == "NODE_FAIL")
    cluster.start_node("n2")
    wait_until(lambda: cluster.node_state("n2") == "idle")


@pytest.mark.slow  # test_lost_nodes.py shows it with a run
def test_an_array_element_of_a_lost_node_runs_again(cluster: Cluster) -> None:
    folder = cluster.folder / "elements"
    folder.mkdir()
    job = cluster.submit(
        "--array=0-1",
        "--exclusive",
        "--requeue",
        script=f"touch {folder}/$SLURM_ARRAY_TASK_ID-${{SLURM_RESTART_COUNT:-0}}\n"
        f"until [ -e {folder}/go ]; do sleep 0.2; done\n",
    )
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    (node,) = [line.split()[2] for line in cluster.queue() if line.startswith(f"{job}_1 ")]
    cluster.kill_node(node)
    wait_until((folder / "1-1").exists)
    assert not (folder / "0-1").exists()
    (folder / "go").touch()
    cluster.wait_idle()


def test_the_queue_outlives_the_controller_and_the_job_goes_on(cluster: Cluster) -> None:
    go = cluster.folder / "go-on"
    job = cluster.submit(script=f"until [ -e {go} ]; do sleep 0.2; done")
    wait_until(lambda: cluster.state(job) == "RUNNING")
    cluster.stop_controller()
    assert not cluster.answers()
    cluster.start_controller()
    assert cluster.state(job) == "RUNNING"
    go.touch()
    cluster.wait_idle()


def test_without_munge_no_command_is_answered(cluster: Cluster) -> None:
    cluster.stop_munge()
    with pytest.raises(AssertionError, match=r"[Mm]unge"):
        cluster.queue()
    cluster.start_munge()
    assert cluster.queue() == []


def test_commands_are_counted_with_their_arguments(cluster: Cluster) -> None:
    for _ in range(2):
        subprocess.run(["squeue", "--noheader"], env=cluster.env, check=True)
    assert cluster.calls == {"squeue": 2}
    assert all(line.endswith(" squeue --noheader") for line in cluster.call_lines())


def test_a_cluster_ends_with_the_process_that_made_it() -> None:
    script = """
import os, signal
from tests.slurm.cluster import NODES, Cluster
cluster = Cluster()
cluster.start()
cluster.submit(script="sleep 300")
print(cluster.folder, *(p.pid for p in cluster.all_processes()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    folder, *pids = done.stdout.split()
    try:
        assert len(pids) >= 5
        wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), 10)
    finally:
        shutil.rmtree(folder)
