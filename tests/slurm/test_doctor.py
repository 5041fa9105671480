"""``launcher doctor --on slurm`` against a real cluster: each fault is a row with its fix."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.doctor.finding import Finding, Status, is_fit
from launcher.job.spec import JobSpec
from launcher.targets.slurm.doctor import diagnose_slurm
from tests.launcher.runner import Runner
from tests.slurm.cluster import Cluster
from tests.waiting import wait_until

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


def test_a_sound_cluster_is_fit_and_is_asked_little(cluster, diagnose):
    found = diagnose(nnodes=3)
    assert is_fit(list(found.values())), found
    assert list(found) == [*("client", "slurmctld", "partition", "start")]
    assert found["start"].found.startswith("Job ")
    assert cluster.calls.total() == 5
    assert cluster.queue() == []


def test_what_does_not_fit_is_told_in_slurms_own_words(cluster, diagnose):
    cluster.drain("n2", "ECC errors on GPU 1")
    wait_until(lambda: cluster.node_state("n2") == "drained")
    found = diagnose(nnodes=3)
    assert found["node"].found == "drained: ECC errors on GPU 1"
    assert "2 of 3 nodes idle, 1 down or drained" in found["partition"].found
    assert found["start"].status is Status.FAILED
    assert diagnose(nnodes=2)["start"].status is Status.OK
    nowhere = diagnose(slurm={"partition": "nope"})["start"]
    assert "invalid partition specified: nope" in nowhere.found
    assert "--set slurm.partition=NAME" in nowhere.fix


def test_without_a_job_the_options_are_looked_at(cluster, tmp_path, monkeypatch):
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    done = Runner(tmp_path)("doctor", "--on", "slurm", "--partition", "high", "--nnodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ok +partition +high +up, .* 3 of 3 nodes idle, gpu:2", done.stdout)
