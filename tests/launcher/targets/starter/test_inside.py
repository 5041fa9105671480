"""``launcher run`` inside of a job of several nodes says how they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.api.choose_target import name_here
from launcher.contract.errors import InputError
from launcher.targets.starter.inside import check_alone
from tests.launcher.runner import Runner
from tests.launcher.targets.starter.test_starters import HYDRA, JSRUN, LSF, OPEN_MPI, PBS, SRUN

ONE = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("environ", "words", "fix"),
    [
        (SRUN, "srun started 4 of these", "srun --ntasks-per-node=1 launcher node"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "32"}, "srun started 32", "srun --ntasks-per-node=1"),
        (OPEN_MPI, "mpirun started 2", "mpirun -N 1 launcher node"),
        (HYDRA, "mpiexec started 4", "mpiexec -ppn 1 launcher node"),
        (JSRUN, "jsrun started 3", "jsrun -r 1"),
        (LSF, "this job of LSF has 3 nodes", 'blaunch -z "HOST1 HOST2" launcher node'),
        ({**PBS, "PBS_NUM_NODES": "2"}, "this job of PBS has 2 nodes", "pbsdsh launcher node"),
        ({"FLUX_URI": "local:///run"}, "this job of Flux has 2 nodes", "flux run --tasks-per-node"),
    ],
)
def test_one_of_several_processes_or_nodes_does_not_train_alone_unasked(
    environ: dict[str, str], words: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_alone(environ, lambda argv, limit_s: "2\n")
    assert words in caught.value.what
    assert fix in caught.value.hint
    assert "--on local" in caught.value.hint


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**SRUN, **ONE},
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "gpu1 8"},
        {**PBS, "PBS_NUM_NODES": "1"},
        {"FLUX_URI": "local:///run"},
    ],
)
def test_a_process_that_is_the_only_one_runs_jobs_as_anywhere(environ: dict[str, str]) -> None:
    check_alone(environ, lambda argv, limit_s: "1\n")


def test_what_a_worker_starts_is_its_own_matter() -> None:
    assert name_here({**SRUN, "LAUNCHER_RUN_ID": "digits-1"}) is None


def test_run_in_one_of_several_processes_is_an_error_and_on_names_the_target(
    tmp_path: Path,
) -> None:
    launcher = Runner(tmp_path)
    launcher.write("print('hello')")
    launcher.env |= OPEN_MPI
    for command in ("run", "render"):
        refused = launcher(command, "train.py")
        assert refused.returncode == 2, refused.stderr
        assert "mpirun started 2 of these, and each would train alone" in refused.stderr
        assert "mpirun -N 1 python -m launcher node" in refused.stderr
    assert launcher("render", "train.py", "--on", "local").returncode == 0
