"""Runs inside of an allocation that is there already, and nodes that srun starts."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.runner import Runner
from tests.launcher.targets.starter.test_node import JOB, SUM
from tests.slurm.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm
LIMIT_S = 120


class Site:
    """A shared folder, and a person who types there."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.launcher = Runner(folder)
        self.launcher.env |= cluster.env | {"PYTHONPATH": self.launcher.env["PYTHONPATH"]}
        self.started: list[subprocess.Popen[str]] = []
        command = folder / "launcher"
        command.write_text(
            f'#!/bin/sh\nexec {shlex.quote(self.launcher.argv()[0])} -m launcher "$@"\n'
        )
        command.chmod(0o755)

    def type(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            cwd=self.launcher.folder,
            env=self.launcher.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def finish(self, *argv: str) -> tuple[int, str, str]:
        process = self.type(*argv)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def wait_up(self, nodes: int) -> None:
        latest = self.launcher.folder / "runs/latest"
        wait_until(lambda: len(list(latest.glob("up-*"))) == nodes)


@pytest.fixture
def site(tmp_path: Path, cluster: Cluster) -> Iterator[Site]:
    site = Site(tmp_path, cluster)
    yield site
    for process in site.started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)
    wait_until(lambda: not cluster.left())


def test_nodes_that_srun_starts_form_a_group(site, cluster):
    site.launcher.write(SUM, JOB)
    code, out, err = site.finish(
        "srun", "--nodes=2", "--ntasks-per-node=1", "./launcher", "node", "job.yaml"
    )
    assert code == 0, err
    assert {"[0/0] sum 2 of node 0", "[1/1] sum 2 of node 1"} <= set(out.splitlines())
    assert "nnodes 2 x nproc_per_node 1 on cpu" in err
    # A stack trace of torch's own, where the store ends before its clients.
    assert "Exception raised" not in err
    (run_id,) = site.launcher.run_ids()
    assert run_id.startswith("tiny-")
    assert run_id.endswith(".0")
    assert f"{run_id}: SUCCEEDED on starter" in site.launcher("status").stdout


def test_several_tasks_on_a_node_are_an_error(site, cluster):
    site.launcher.write(SUM, JOB)
    code, _, err = site.finish("srun", "--nodes=1", "--ntasks=2", "./launcher", "node", "job.yaml")
    assert (code, "srun started 2 processes on this node" in err) == (2, True), err
    code, _, err = site.finish("srun", "--nodes=2", "--ntasks=2", "./launcher", "run", "job.yaml")
    assert (code, "srun started this command 2 times" in err) == (2, True), err


def test_run_in_an_allocation_uses_its_nodes_and_submits_nothing(site, cluster):
    site.launcher.write(SUM, JOB)
    runs = ("./launcher run job.yaml", "./launcher run job.yaml --nnodes 1 --set slurm.time=5")
    lines = "; ".join((*runs, "./launcher run job.yaml --nnodes 3"))
    code, out, err = site.finish("salloc", "--nodes=2", "sh", "-c", lines)
    assert code == 2, err
    assert {"[0/0] sum 2 of node 0", "[1/1] sum 2 of node 1"} <= set(out.splitlines())
    assert "sum 1 of node 0" in out
    assert "2 of its 2 nodes" in err
    assert "slurm.time: not asked of Slurm, as the run uses an existing allocation" in err
    assert "the job has nnodes 3, and Slurm's job" in err
    assert "--nnodes 2, a larger allocation, or --on slurm" in err
    assert cluster.calls["sbatch"] == 0
