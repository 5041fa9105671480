"""What srun and mpirun tell the agent of its own task is not taken for the worker's."""

import pytest

from tests.launcher.agent.place import Place

OF_SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOBID": "17",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "3",
    "SLURM_NPROCS": "3",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_GTIDS": "2",
    "SLURM_TASK_PID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_STEP_LAUNCHER_PORT": "33001",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_SRUN_COMM_HOST": "127.0.0.1",
    "SLURM_SRUN_COMM_PORT": "33001",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_RESTART_COUNT": "1",
    "SLURMD_NODENAME": "n3",
    "SRUN_DEBUG": "3",
    "PMI_RANK": "2",
    "PMI_SIZE": "3",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "slurm.pmix.17.0",
}
OF_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_MCA_ess_base_jobid": "1",
    "PMIX_SERVER_URI3": "pmix-server.1;tcp4://127.0.0.1:33333",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
}
KEPT = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_NNODES"),
    *("SLURM_RESTART_COUNT", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"),
)
LISTING = """
import os
names = ("SLURM", "SRUN", "PMI", "OMPI", "MPI_", "CUDA_VISIBLE")
print(*sorted(name for name in os.environ if name.startswith(names)))
"""


@pytest.fixture
def started(place: Place) -> Place:
    """A node as srun or mpirun starts it."""
    place.env.update(OF_SRUN | OF_MPIRUN)
    return place


def test_a_worker_keeps_what_tells_of_its_job_and_nothing_of_the_agent_s_task(started):
    started.write(LISTING)
    started.plan()
    assert started.run() == 0, started.console()
    left = started.stdout().split()
    assert set(KEPT) <= set(left)
    assert not [name for name in left if name not in KEPT and not name.startswith("SLURM_")]
    told = ("PROCID", "LOCALID", "NODEID", "NTASKS", "NPROCS", "STEP", "CPU_BIND", "SRUN", "TASK")
    assert not [name for name in left if any(word in name for word in told)]


def test_what_the_job_itself_sets_reaches_the_worker_all_the_same(started):
    started.write("import os; print(os.environ['SLURM_CPU_BIND'])")
    started.plan(env=(("SLURM_CPU_BIND", "none"),))
    assert started.run() == 0, started.console()
    assert started.stdout() == "none\n"
