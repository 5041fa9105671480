"""``launcher doctor --on slurm`` against a real cluster: each fault is a row with its fix."""

import pytest

from launcher.doctor.finding import Status, is_fit
from launcher.job.spec import JobSpec
from launcher.targets.slurm.doctor import diagnose_slurm
from tests.slurm.test_doctor import diagnose
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm


def test_the_test_job_tells_what_a_node_sees_and_what_it_lacks(cluster, diagnose):
    found = diagnose(ask_nodes=True)
    assert is_fit(list(found.values())), found
    assert "torch" in found["python, torch"].found
    lacking = diagnose(ask_nodes=True, slurm={"python": "/opt/nowhere/python"})
    assert "/opt/nowhere/python: No such file" in lacking["all-reduce"].found
    assert lacking["start"].status is Status.FAILED
    assert lacking["start"].found == "no answer before the run failed"
    assert "test job" not in lacking
    cluster.wait_idle()


def test_a_controller_that_is_away_ends_the_diagnosis(cluster, diagnose):
    cluster.stop_controller()
    found = diagnose()
    assert list(found) == ["client", "slurmctld"]
    assert found["slurmctld"].found.endswith("is DOWN")


def test_a_test_job_that_does_not_start_is_taken_back(cluster, diagnose, tmp_path):
    held = cluster.submit("--nodes=3", "--exclusive", script="sleep 300")
    wait_until(lambda: cluster.state(held) == "RUNNING")
    spec = JobSpec.model_validate(
        {"name": "digits", "command": ["-m", "train"], "slurm": {"exclusive": True}}
    )
    found = list(diagnose_slurm(spec, tmp_path, tmp_path / "runs", 4.0, ask_nodes=True))
    assert (found[-1].check, found[-1].found) == ("test job", "did not succeed within 4 s")
    assert [line.split()[0] for line in cluster.queue()] == [held]
    cluster.ask("scancel", held)
    cluster.wait_idle()
