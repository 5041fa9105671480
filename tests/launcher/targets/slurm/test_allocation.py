"""What a job gets inside of an allocation that is there already. Needs no Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.plan.nnodes import decide_nnodes
from launcher.targets.slurm.inside import LAST_WORD, describe_unused, find_allocation, nodes_of
from launcher.targets.slurm.room import SlurmRoom
from launcher.targets.slurm_process import SlurmProcess

TWO = SlurmProcess(job=7, nodes=2)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, SlurmProcess(job=7, nodes=2)),
        # A task, a shell of salloc that is a step, and one of srun --pty.
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, None),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_NUM_NODES": "3"},
            SlurmProcess(job=7, nodes=3),
        ),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "4000"},
            SlurmProcess(job=7, nodes=1, step="0", is_shell=True),
        ),
    ],
)
def test_an_allocation_is_found_by_its_environment(
    environ: dict[str, str], found: SlurmProcess | None
) -> None:
    assert find_allocation(environ) == found
    assert SlurmRoom().is_here(environ) == (found is not None)


@pytest.mark.parametrize(
    ("nnodes", "found"),
    [("", "2"), ("nnodes: 1", "1"), ("nnodes: 2", "2"), ("nnodes: 1:8", "1:2")],
)
def test_a_job_takes_all_nodes_or_as_many_as_it_names(nnodes: str, found: str) -> None:
    job = parse_job(f"name: a\ncommand: [train.py]\n{nnodes}\n", "job.yaml")
    assert str(decide_nnodes(job, nodes_of(TWO)).nnodes) == found


def test_more_nodes_than_there_are_is_an_error_with_the_fix() -> None:
    job = parse_job("name: a\ncommand: [train.py]\nnnodes: 3:4\n", "job.yaml")
    with pytest.raises(
        InputError, match="has nnodes 3:4, and Slurm's job 7, in which this runs, has 2"
    ) as caught:
        decide_nnodes(job, nodes_of(TWO))
    assert "--nnodes 2" in caught.value.hint


def test_keys_of_a_job_that_is_there_already_are_named() -> None:
    text = "name: a\ncommand: [train.py]\nslurm: {time: 5, python: /p, partition: gpu}\n"
    (line,) = describe_unused(parse_job(text, "job.yaml"))
    what = "not asked of Slurm, as the run uses an existing allocation"
    assert line == f"slurm.partition, slurm.time: {what}"
    assert describe_unused(parse_job("name: a\ncommand: [train.py]\n", "job.yaml")) == []


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        # In the lines of slurm.setup, whose codes are a person's.
        ("exit 3", {"7.0.ended": "1 over"}),
        ("kill -KILL $$", {"7.0.ended": "137 over"}),
        ("echo n1 >7.1.started; kill -KILL $$", {"7.1.ended": "137 over"}),
        ("echo n1 >7.0.started; echo 0 over >7.0.ended", {"7.0.ended": "0 over"}),
    ],
)
def test_a_script_that_ends_without_its_last_word_has_it_said(
    tmp_path: Path, script: str, ended: dict[str, str]
) -> None:
    (tmp_path / "script.sh").write_text(script)
    argv = ["bash", "-c", LAST_WORD, "script.sh", str(tmp_path), "7"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    found = {path.name: path.read_text().strip() for path in tmp_path.glob("*.ended")}
    assert found == ended
