"""Commands of Slurm that are missing, silent or refused. What they answer: tests/slurm."""

import re

import pytest

from launcher.contract.errors import InputError, TargetError
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import plan_run
from launcher.runs.folder import RunFolder
from launcher.targets.slurm import client
from launcher.targets.slurm.job_starts import find_taken
from launcher.targets.slurm.target import SlurmTarget


def test_a_machine_without_slurm_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(client.SlurmError) as caught:
        client.run_command("sbatch", "--version")
    assert "sbatch: No such file or directory" in str(caught.value)
    assert "on a login node of the cluster" in str(caught.value)
    assert not caught.value.is_away


def test_a_command_that_hangs_is_given_up():
    with pytest.raises(client.SlurmError) as caught:
        client.run_command("sleep", "60", limit_s=0.2)
    assert "gave no answer within 0.2 s" in str(caught.value)
    assert caught.value.is_away


@pytest.mark.parametrize(
    ("said", "is_away"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("error: invalid partition specified: x", False),
    ],
)
def test_a_controller_that_is_away_is_known_by_its_clients_words(said, is_away):
    with pytest.raises(client.SlurmError, match=re.escape(f"sh: {said}")) as caught:
        client.run_command("sh", "-c", f"echo '{said}' >&2; exit 1")
    assert caught.value.is_away == is_away
    assert ("scontrol ping" in caught.value.hint) == is_away


def test_a_new_job_gets_nothing_of_the_job_around_it():
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SBATCH_PARTITION": "other",
        "SRUN_CPUS_PER_TASK": "2",
        "SQUEUE_PARTITION": "high",
    }
    kept = client.without_defaults(environ)
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}


@pytest.mark.parametrize(
    ("said", "raised", "fix"),
    [
        ("fatal: Could not establish a configuration source", TargetError, "export SLURM_CONF="),
        ("allocation failure: Protocol authentication error", TargetError, "munge -n | unmunge"),
        ("error: Unable to contact slurm controller", TargetError, "scontrol ping"),
        ("error: invalid partition specified: x", InputError, "--set slurm.partition="),
    ],
)
def test_a_cluster_that_is_out_of_reach_is_no_wrong_input(said, raised, fix, tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho 'sbatch: {said}' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    job = JobSpec.model_validate({"name": "digits", "command": ["train.py"]})
    target = SlurmTarget(tmp_path / "runs")
    plan = plan_run(job, target.facts(job), run_id="digits-1")
    with pytest.raises(raised, match=said) as caught:
        target.check(plan)
    assert fix in str(caught.value)


def test_jobs_of_a_run_are_found_by_their_comment(tmp_path, monkeypatch):
    lines = "12|launcher:tiny-1\\n13|(null)\\n12|launcher:tiny-1\\n14|launcher:tiny-12\\n"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert client.find_jobs("tiny-1") == (12,)


SQUEUE = """#!/bin/bash
[ -z "$SQUEUE_PARTITION" ] || exit 1
echo '12|12|N/A|RUNNING|None|launcher:tiny-1'
echo '14|13|1|PENDING|BeginTime|(null)'
echo '13|13|2|PENDING|Priority|a | b'
"""


def test_the_queue_is_told_whole_whatever_filter_a_person_likes(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_PARTITION", "high")
    running, held, waiting = client.read_queue([12, 13])
    assert (held.name, waiting.why, running.state) == ("13_1", "Priority", "RUNNING")
    assert (running.run_id, held.run_id, waiting.run_id) == ("tiny-1", "", "")


def test_a_job_that_slurm_refuses_at_last_is_bad_input_with_a_fix(tmp_path):
    """Of nodes that are drained, ``sbatch --test-only`` says the same, so it decides nothing."""
    said = "sbatch: error: Requested node configuration is not available"
    refused = client.SlurmError(said, "", is_away=False)
    with pytest.raises(InputError) as caught:
        find_taken(RunFolder(tmp_path), refused)
    assert caught.value.what == said
    assert "sinfo --Node --long" in caught.value.hint
