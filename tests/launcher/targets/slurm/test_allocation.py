"""What a job gets inside of an allocation that is there already. Needs no Slurm."""

from argparse import ArgumentParser, Namespace

import pytest

from launcher.contract.errors import InputError
from launcher.job.file import parse_job
from launcher.plan.nnodes import decide_nnodes
from launcher.targets.room import GivenOptions
from launcher.targets.slurm.inside import describe_unused, find_allocation, nodes_of
from launcher.targets.slurm.room import SlurmRoom
from launcher.targets.slurm_process import SlurmProcess

TWO = SlurmProcess(job=7, nodes=2)
RUNS = "echo '7|7|N/A|RUNNING|None|'"


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
def test_an_allocation_is_found_by_its_environment(environ, found, commands):
    commands.does("squeue", RUNS)
    assert find_allocation(environ) == found
    assert SlurmRoom().is_here(environ, pytest.fail) == (found is not None)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("true", "this job of Slurm has ended"),
        (RUNS.replace("RUNNING", "TIMEOUT"), "this job of Slurm has ended"),
        ("echo 'Invalid job id specified' >&2; exit 1", "this job of Slurm has ended"),
        (
            "echo 'Could not establish a configuration source' >&2; exit 1",
            "Slurm cannot be asked here: squeue: Could not establish a configuration source",
        ),
        # It may answer again before srun has given up.
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
    ],
)
def test_the_job_of_an_old_shell_is_told_and_not_taken(lines, why, commands, monkeypatch, tmp_path):
    commands.does("squeue", lines)
    told: list[str] = []
    assert SlurmRoom().is_here({"SLURM_JOB_ID": "7"}, told.append) == (why is None)
    assert told == ([f"SLURM_JOB_ID=7 of this shell does not count: {why}"] if why else [])
    # A new run has a job of its own there, and where --on asks for one; so have later commands.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for given in (Namespace(set=[], on=None), Namespace(set=[], on="slurm"), Namespace(), None):
        is_new = given is not None and "set" in given and given.on is None
        there = SlurmRoom().open(tmp_path, given).there
        assert (there is not None) == (why is None and is_new)
    assert len(commands.calls()) == 1


@pytest.mark.parametrize(
    ("nnodes", "found"),
    [("", "2"), ("nnodes: 1", "1"), ("nnodes: 2", "2"), ("nnodes: 1:8", "1:2")],
)
def test_a_job_takes_all_nodes_or_as_many_as_it_names(nnodes, found):
    job = parse_job(f"name: a\ncommand: [train.py]\n{nnodes}\n", "job.yaml")
    assert str(decide_nnodes(job, nodes_of(TWO)).nnodes) == found


def test_more_nodes_than_there_are_is_an_error_with_the_fix():
    job = parse_job("name: a\ncommand: [train.py]\nnnodes: 3:4\n", "job.yaml")
    with pytest.raises(
        InputError, match="has nnodes 3:4, and Slurm's job 7, in which this runs, has 2"
    ) as caught:
        decide_nnodes(job, nodes_of(TWO))
    assert "--nnodes 2" in caught.value.hint


def test_keys_of_a_job_that_is_there_already_are_named():
    text = "name: a\ncommand: [train.py]\nslurm: {time: 5, python: /p, partition: gpu}\n"
    (line,) = describe_unused(parse_job(text, "job.yaml"))
    what = "not asked of Slurm, as the run uses an existing allocation"
    assert line == f"slurm.partition, slurm.time: {what}"
    assert describe_unused(parse_job("name: a\ncommand: [train.py]\n", "job.yaml")) == []


# -- sbatch's options that people type most --------------------------------------------------------

OF_JOB = (
    " [--partition NAME] [--account NAME] [--qos NAME] [--time LIMIT] [--constraint NAME]"
    " [--reservation NAME]"
)


@pytest.mark.parametrize(
    ("of", "usage"), [("run", ""), ("job", OF_JOB), ("doctor", f"{OF_JOB} [--test-job]")]
)
def test_a_command_about_a_job_has_the_options_of_sbatch(of, usage):
    parser = ArgumentParser("launcher", add_help=False)
    SlurmRoom().add_options(parser, of)
    assert " ".join(parser.format_usage().split()) == f"usage: launcher{usage}"


def test_options_of_slurm_set_keys_of_the_job_and_need_this_target():
    room, parser = SlurmRoom(), ArgumentParser()
    room.add_options(parser, "doctor")
    words = ["--time", "5", "--qos", "high", "--test-job"]
    given = room.read_options(parser.parse_args(words, Namespace(set=[], on="slurm")))
    assert given.settings == {"qos": "high", "time": "5"}
    assert given.sample_job is not None
    assert parse_job(given.sample_job(), "job.yaml").name == "doctor"
    with pytest.raises(InputError, match="--qos high --time 5 --test-job without --on slurm"):
        room.read_options(parser.parse_args(words, Namespace(set=[], on="docker")))
    # A job that runs elsewhere, and a command about a run, which has words of its own.
    for other in (parser.parse_args([], Namespace(set=[], on=None)), Namespace(time="5")):
        assert room.read_options(other) == GivenOptions()
