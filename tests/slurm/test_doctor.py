"""``launcher doctor --on slurm`` against a real cluster: each fault is a row with its fix."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.api.doctor import is_fit
from launcher.doctor.finding import Finding, Status
from launcher.job.spec import JobSpec
from launcher.targets.slurm.doctor import diagnose_slurm
from tests.launcher.runner import Runner
from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

Diagnose = Callable[..., dict[str, Finding]]


@pytest.fixture
def diagnose(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])

    def work(*, ask_nodes: bool = False, **job: Any) -> dict[str, Finding]:
        slurm = {"python": sys.executable, **job.pop("slurm", {})}
        known = {"name": "digits", "command": ["-m", "train"], "stop_grace_s": 5}
        spec = JobSpec.model_validate({**known, **job, "slurm": slurm})
        own, runs = tmp_path / "own", tmp_path / "runs"
        own.mkdir(exist_ok=True)
        found = list(diagnose_slurm(spec, own, runs, 60.0, ask_nodes=ask_nodes))
        assert not runs.exists(), "left behind"
        return {finding.check: finding for finding in found}

    return work


def test_a_sound_cluster_is_fit_and_is_asked_little(cluster: Cluster, diagnose: Diagnose) -> None:
    found = diagnose(nnodes=3)
    assert is_fit(list(found.values())), found
    assert list(found) == [
        *("munge", "slurmctld", "versions", "partition", "GPUs", "nodes", "account"),
        *("time to stop", "run folder", "start"),
    ]
    assert found["start"].found.startswith("in about 0 s: Job ")
    assert cluster.calls.total() == 6
    assert cluster.queue() == []


@pytest.mark.slow
def test_the_test_job_tells_what_a_node_sees(cluster: Cluster, diagnose: Diagnose) -> None:
    found = diagnose(ask_nodes=True)
    assert is_fit(list(found.values())), found
    assert found["test job"].where in ("n1", "n2", "n3")
    assert "torch" in found["python, torch"].found
    assert cluster.queue() == []


@pytest.mark.slow
def test_a_python_that_nodes_do_not_have_is_told(diagnose: Diagnose) -> None:
    found = diagnose(ask_nodes=True, slurm={"python": "/opt/nowhere/python"})
    assert found["test job"].status is Status.FAILED
    assert "/opt/nowhere/python: No such file" in found["test job"].found
    assert "slurm.python" in found["test job"].fix


def test_a_drained_node_says_why(cluster: Cluster, diagnose: Diagnose) -> None:
    cluster.drain("n2", "ECC errors on GPU 1")
    wait_until(lambda: cluster.node_state("n2") == "drained")
    found = diagnose(nnodes=3)
    assert found["nodes"].status is Status.FAILED
    assert found["node"].found == "drained: ECC errors on GPU 1"
    assert diagnose(nnodes=2)["nodes"].status is Status.OK


def test_a_partition_that_is_not_there_is_told(diagnose: Diagnose) -> None:
    found = diagnose(slurm={"partition": "nope"})
    assert "one of: main,high,short" in found["partition"].fix
    assert "invalid partition specified: nope" in found["start"].found


def test_more_nodes_than_the_partition_has_are_told(diagnose: Diagnose) -> None:
    found = diagnose(nnodes=5)
    assert found["nodes"].status is Status.FAILED
    assert "3 of 3 nodes fit the job, and the job needs 5" in found["nodes"].found
    assert found["start"].status is Status.FAILED


def test_a_controller_that_is_away_ends_the_diagnosis(cluster: Cluster, diagnose: Diagnose) -> None:
    cluster.stop_controller()
    found = diagnose()
    assert list(found) == ["munge", "slurmctld"]
    assert found["munge"].status is Status.OK
    assert found["slurmctld"].found.endswith("is DOWN")


def test_munge_that_is_away_is_told_as_the_cause(cluster: Cluster, diagnose: Diagnose) -> None:
    cluster.stop_munge()
    found = diagnose()
    assert "Did you start munged?" in found["munge"].found
    assert found["slurmctld"].fix == "munge first, above"


@pytest.mark.slow
def test_a_test_job_that_does_not_start_is_taken_back(
    cluster: Cluster, diagnose: Diagnose, tmp_path: Path
) -> None:
    held = cluster.submit("--nodes=3", "--exclusive", script="sleep 300")
    wait_until(lambda: cluster.state(held) == "RUNNING")
    spec = JobSpec.model_validate(
        {"name": "digits", "command": ["-m", "train"], "slurm": {"exclusive": True}}
    )
    found = list(diagnose_slurm(spec, tmp_path, tmp_path / "runs", 4.0, ask_nodes=True))
    assert found[-1].check == "test job"
    assert "has not ended within 4 s: PENDING (" in found[-1].found
    assert [line.split()[0] for line in cluster.queue()] == [held]
    cluster.ask("scancel", held)
    cluster.wait_idle()


def test_without_a_job_the_options_are_looked_at(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    done = Runner(tmp_path)("doctor", "--on", "slurm", "--partition", "high", "--nnodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       partition" in done.stdout
    assert "high" in done.stdout
