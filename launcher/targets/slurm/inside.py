"""A run inside an existing allocation: it uses that job's nodes, and has no job of its own.

The batch script is the same. It runs as a process of this machine, and its srun starts the nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.plan.nnodes import NodesThere
from launcher.runs.folder import RunFolder
from launcher.targets.slurm import client
from launcher.targets.slurm.job_starts import write_job
from launcher.targets.slurm.settings import JOBS_DIR
from launcher.targets.slurm_process import SlurmProcess, read_slurm
from launcher.targets.subprocesses import children

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


def find_allocation(
    environ: Mapping[str, str], note: Callable[[str], None] = lambda line: None
) -> SlurmProcess | None:
    """This process, if it is a script or shell of an allocation that lives; None elsewhere, also in
    a task. ``note`` is told why an allocation does not count."""
    process = read_slurm(environ)
    if process is None or process.is_task:
        return None
    if why := why_stale(process.job):
        note(f"SLURM_JOB_ID={process.job} of this shell does not count: {why}")
        return None
    return process


@functools.cache
def why_stale(job: int) -> str:
    """Why no node of the job can be used from here; empty if the job lives.

    A controller that does not answer now may know the job later.
    """
    try:
        queue = client.read_queue((job,))
    except client.SlurmError as error:
        return (
            "" if error.is_away else f"Slurm cannot be asked here: {error.what.rpartition('; ')[2]}"
        )
    return "" if any(not queued.is_over for queued in queue) else "this job of Slurm has ended"


def nodes_of(allocation: SlurmProcess) -> NodesThere:
    """The allocation's nodes, for a job that runs on all of them or on some."""
    nodes = allocation.nodes
    fix = f"--nnodes {nodes}, a larger allocation, or --on slurm for a job of its own"
    says = f"Slurm's job {allocation.job}, in which this runs, has {nodes}"
    return NodesThere(count=nodes, says=says, fix=fix)


def start_script(
    run: RunFolder, nodes: int, allocation: SlurmProcess, environ: dict[str, str]
) -> None:
    """Starts the batch script as a process of this machine. Raises ``OSError``."""
    count = str(nodes)
    env = {
        **environ,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        # The launcher finds its processes by it.
        protocol.RUN_ID: run.run_id,
    }
    if allocation.step:
        env["SLURM_OVERLAP"] = "1"
    write_job(run, allocation.job)
    log = run.path / JOBS_DIR / f"{allocation.job}.log"
    argv = ("bash", str(run.path / protocol.ARTIFACT_FILE))
    children.start(argv, cwd=str(Path.cwd()), env=env, console=log)


def find_step(run_id: str, job: int) -> list[str]:
    """The run's step, as scancel takes it; empty if the job has none. Raises ``SlurmError``."""
    listing = client.run_command(
        "squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"
    )
    pairs = (line.strip().partition("|")[::2] for line in listing.splitlines())
    return [step for step, name in pairs if name == run_id]


def describe_unused(job: JobSpec) -> list[str]:
    """A line about keys that the allocation has decided already, if there are any. Pure."""
    given = sorted(job.slurm.model_fields_set - {"setup", "python", "container", "image"})
    keys = ", ".join(f"slurm.{key}" for key in given)
    return [f"{keys}: not asked of Slurm, as the run uses an existing allocation"] if given else []
