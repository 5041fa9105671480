"""Which node a process is, from the environment that each starter documents."""

import pytest

from launcher.api.choose_target import name_here
from launcher.contract.errors import InputError
from launcher.targets.starter.starters import find_place
from tests.launcher.runner import Runner

SLURM_JOB = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4"}
"""What every process of a job of Slurm has."""
BATCH_SCRIPT = {**SLURM_JOB, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SRUN = {
    **SLURM_JOB,
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "1024458753",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


@pytest.mark.parametrize(
    ("environ", "starter", "index", "nodes", "job"),
    [
        (SRUN, "srun", 2, 4, "77.0"),
        ({**SRUN, "SLURM_STEP_ID": "3"}, "srun", 2, 4, "77.3"),
        # By Slurm's own plugins for PMI-2 and PMIx.
        ({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "4"}, "srun", 2, 4, "77.0"),
        ({**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, "srun", 2, 4, "77.0"),
        # A step of fewer nodes than the job.
        ({**SRUN, "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3"}, "srun", 2, 3, "77.0"),
        (OPEN_MPI, "mpirun", 1, 2, "1024458753"),
        ({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-a-1@1"}, "mpirun", 1, 2, "prterun-a-1-1"),
        # mpirun in a job of Slurm starts its daemons by srun, but for its own node.
        ({**SRUN, **OPEN_MPI}, "mpirun", 1, 2, "77"),
        ({**BATCH_SCRIPT, **OPEN_MPI}, "mpirun", 1, 2, "77"),
        ({"PBS_JOBID": "12[3].head", **OPEN_MPI}, "mpirun", 1, 2, "12-3"),
        (HYDRA, "mpiexec", 3, 4, ""),
        ({**SRUN, **HYDRA}, "mpiexec", 3, 4, "77"),
        ({"LAUNCHER_NODE_INDEX": "2"}, "your script", 2, None, ""),
    ],
)
def test_a_process_learns_its_place_from_its_starter(environ, starter, index, nodes, job):
    place = find_place(environ)
    assert (place.starter, place.index, place.nodes, place.job) == (starter, index, nodes, job)
    assert place.here == 1


@pytest.mark.parametrize(
    ("environ", "words", "fix"),
    [
        ({}, "cannot find out which node this is", "srun --ntasks-per-node=1, mpirun -N 1"),
        # Another starter, such as Flux, which says nothing of how many processes a node has.
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "cannot find out", "set LAUNCHER_NODE_INDEX to 0, 1"),
        # No task: a batch script, the shells of salloc and of srun --pty.
        (BATCH_SCRIPT, "cannot find out which node this is", "srun"),
        ({**SRUN, "SLURM_STEP_ID": "4294967290"}, "cannot find out which node", "srun"),
        ({**SRUN, "SLURM_PTY_PORT": "40123"}, "cannot find out which node", "srun"),
        # A worker of a run, whose LAUNCHER_NODE_INDEX is that run's.
        ({"LAUNCHER_NODE_INDEX": "0", "LAUNCHER_RUN_ID": "a-1"}, "cannot find out", "srun"),
        (
            {**SRUN, "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "32"},
            "srun started 8 processes on this node",
            "srun --ntasks-per-node=1 launcher node",
        ),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "mpirun started 2 processes on this node",
            "mpirun -N 1 launcher node",
        ),
        ({**HYDRA, "MPI_LOCALNRANKS": "4"}, "mpiexec started 4", "mpiexec -ppn 1"),
        (
            {**SRUN, "SLURM_PROCID": "x"},
            "SLURM_PROCID='x' is no valid number, so it is unknown which node this is",
            "srun",
        ),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE='0'", "mpirun -N 1"),
    ],
)
def test_a_wrong_start_is_an_error_with_the_fix(environ, words, fix):
    with pytest.raises(InputError) as caught:
        find_place(environ)
    assert words in caught.value.what
    assert fix in caught.value.hint


def test_a_requeued_job_is_the_same_job_in_another_start():
    first, second = (find_place({**SRUN, **more}) for more in ({}, {"SLURM_RESTART_COUNT": "1"}))
    assert first.job == second.job
    assert first.start != second.start
    assert first.scheduler


def test_two_calls_of_mpirun_in_one_job_are_two_starts():
    job = {**BATCH_SCRIPT, **OPEN_MPI}
    first, second = (find_place({**job, "PMIX_NAMESPACE": call}) for call in ("1", "2"))
    assert first.job == second.job
    assert first.start != second.start
    # Without a scheduler its id is made of a process id, which another mpirun may get.
    assert not find_place(OPEN_MPI).scheduler


# -- launcher run in the place of launcher node ---------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "words", "fix"),
    [
        (SRUN, "srun started this command 4 times", "srun --ntasks-per-node=1 launcher node"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "32"}, "srun started this command 32 times", "srun"),
        (OPEN_MPI, "mpirun started this command 2 times", "mpirun -N 1 launcher node"),
        (HYDRA, "mpiexec started this command 4 times", "mpiexec -ppn 1 launcher node"),
    ],
)
def test_one_of_several_processes_does_not_train_alone_unasked(environ, words, fix):
    with pytest.raises(InputError) as caught:
        name_here(environ)
    assert words in caught.value.what
    assert fix in caught.value.hint
    assert "--on local" in caught.value.hint


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        # What a worker starts is its own matter.
        {**SRUN, "LAUNCHER_RUN_ID": "digits-1"},
    ],
)
def test_a_process_that_is_the_only_one_runs_jobs_as_anywhere(environ):
    assert name_here(environ) is None


def test_run_in_one_of_several_processes_is_an_error_and_on_names_the_target(tmp_path):
    launcher = Runner(tmp_path)
    launcher.write("print('hello')")
    launcher.env |= OPEN_MPI
    told = launcher.fails(2, "run", "train.py")
    assert "mpirun started this command 2 times" in told
    assert "mpirun -N 1 launcher node" in told
    assert launcher("render", "train.py", "--on", "local").returncode == 0
