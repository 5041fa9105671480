"""Which node a process is, from the environment that each starter documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import InputError
from launcher.targets.starter.starters import STARTERS, NodePlace, find_place

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
FLUX = {
    "FLUX_JOB_ID": "ƒ2oYnGr7",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_RANK": "1",
    "FLUX_TASK_LOCAL_ID": "0",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
LSF = {"LSB_JOBID": "901", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "gpu1 8 gpu2 8 gpu3 8"}
JSRUN = {
    **LSF,
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_ID": "5",
    "PMIX_RANK": "1",
}
PBS = {"PBS_JOBID": "12[3].head", "PBS_NODENUM": "1", "PBS_TASKNUM": "2"}


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
        ({"PBS_JOBID": "12.head", **OPEN_MPI}, "mpirun", 1, 2, "12"),
        (HYDRA, "mpiexec", 3, 4, ""),
        ({**SRUN, **HYDRA}, "mpiexec", 3, 4, "77"),
        (FLUX, "flux run", 1, 2, "f2oYnGr7"),
        ({**SRUN, **FLUX}, "flux run", 1, 2, "f2oYnGr7"),
        (JSRUN, "jsrun", 1, 3, "901"),
        (LSF, "blaunch", 1, 3, "901"),
        ({**LSF, "LSB_JOBINDEX": "4"}, "blaunch", 1, 3, "901-4"),
        (PBS, "pbsdsh", 1, None, "12-3"),
        ({**PBS, "PBS_NUM_NODES": "2"}, "pbsdsh", 1, 2, "12-3"),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prte-b-2@3"}, "the starter", 1, None, "prte-b-2-3"),
        ({"LAUNCHER_NODE_INDEX": "2"}, "your script", 2, None, ""),
    ],
)
def test_a_process_learns_its_place_from_its_starter(
    environ: dict[str, str], starter: str, index: int, nodes: int | None, job: str
) -> None:
    place = find_place(environ, "gpu2.example.org")
    assert (place.starter, place.index, place.nodes, place.job) == (starter, index, nodes, job)
    assert place.here == 1


@pytest.mark.parametrize(
    ("environ", "words", "fix"),
    [
        ({}, "nothing tells which node this is", "srun --ntasks-per-node=1, mpirun -N 1"),
        # No task: a batch script, the shells of salloc and of srun --pty.
        (BATCH_SCRIPT, "nothing tells which node this is", "srun"),
        ({**SRUN, "SLURM_STEP_ID": "4294967290"}, "nothing tells which node", "srun"),
        ({**SRUN, "SLURM_PTY_PORT": "40123"}, "nothing tells which node", "srun"),
        # A worker of a run, whose LAUNCHER_NODE_INDEX is that run's.
        ({"LAUNCHER_NODE_INDEX": "0", "LAUNCHER_RUN_ID": "a-1"}, "nothing tells", "srun"),
        (
            {**SRUN, "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "32"},
            "srun started 8 processes on this node",
            "srun --ntasks-per-node=1 launcher node",
        ),
        (
            {**SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "2"},
            "srun started 4 processes on this node",
            "srun --ntasks-per-node=1",
        ),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "mpirun started 2 processes on this node",
            "mpirun -N 1 launcher node",
        ),
        ({**HYDRA, "MPI_LOCALNRANKS": "4"}, "mpiexec started 4", "mpiexec -ppn 1"),
        ({**FLUX, "FLUX_JOB_SIZE": "8"}, "flux run started 4", "--tasks-per-node=1"),
        ({**JSRUN, "JSM_NAMESPACE_LOCAL_SIZE": "6"}, "jsrun started 6", "jsrun -r 1"),
        ({**LSF, "LSB_MCPU_HOSTS": "a 8 b 8"}, "does not name this host, gpu2", "blaunch -z"),
        ({**SRUN, "SLURM_PROCID": "x"}, "SLURM_PROCID='x' is no number", "srun"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE=0", "mpirun -N 1"),
        ({**PBS, "PBS_NODENUM": "5", "PBS_NUM_NODES": "2"}, "tells of 2 nodes", "pbsdsh"),
    ],
)
def test_a_wrong_start_is_an_error_with_the_fix(
    environ: dict[str, str], words: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        find_place(environ, "gpu2")
    assert words in caught.value.what
    assert fix in caught.value.hint


def test_the_first_node_of_a_job_of_pbs_counts_the_hosts_of_its_file(tmp_path: Path) -> None:
    hosts = tmp_path / "nodes"
    hosts.write_text("gpu1\ngpu1\ngpu2\ngpu2\ngpu3\n")
    assert find_place({**PBS, "PBS_NODEFILE": str(hosts)}, "gpu2").nodes == 3
    gone = {**PBS, "PBS_NODEFILE": str(tmp_path / "only-on-the-first-node")}
    assert find_place(gone, "gpu2").nodes is None


def test_a_requeued_job_is_the_same_job_in_another_start() -> None:
    first, second = (find_place({**SRUN, **more}, "a") for more in ({}, again(1)))
    assert first.job == second.job
    assert first.start != second.start
    assert first.comes_again


def test_two_calls_of_mpirun_in_one_job_are_two_starts() -> None:
    job = {**BATCH_SCRIPT, **OPEN_MPI}
    first, second = (find_place({**job, "PMIX_NAMESPACE": call}, "a") for call in ("1", "2"))
    assert first.job == second.job
    assert first.start != second.start


def test_mpirun_without_a_scheduler_names_a_job_that_may_be_another_ones() -> None:
    # Its id is made of a process id, which another mpirun may get.
    assert not find_place(OPEN_MPI, "a").comes_again


def again(times: int) -> dict[str, str]:
    return {"SLURM_RESTART_COUNT": str(times)}


def test_every_starter_says_how_one_process_is_started_on_each_node() -> None:
    for starter in STARTERS:
        assert starter.name
        assert starter.rank.isupper()
        assert starter.one_on_each


def make_place(**fields: Any) -> NodePlace:
    return NodePlace(**{"starter": "srun", "index": 0, "nodes": 2, "job": "77.0", **fields})
