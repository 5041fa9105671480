"""What Slurm tells a process about itself, by its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SlurmProcess:
    """A process inside of a job of Slurm.

    ``nodes`` are the job's. ``restarts`` is how often Slurm requeued the job before. ``step`` is
    the number of the step around the process, empty in a batch script and a shell of ``salloc``.
    ``is_shell``: the process is, or was typed in, a shell of ``srun --pty``, and is no task that
    works with others.
    """

    job: int
    nodes: int
    restarts: str = "0"
    step: str = ""
    is_shell: bool = False

    @property
    def is_task(self) -> bool:
        """Whether srun started it as one of its tasks."""
        return bool(self.step) and not self.is_shell


def read_slurm(environ: Mapping[str, str]) -> SlurmProcess | None:
    """What the environment says of this process; None outside of any job of Slurm."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    if not job.isdigit():
        return None
    nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    # Step numbers from 4294967290 on are batch scripts and shells of ``salloc``, not tasks.
    return SlurmProcess(
        job=int(job),
        nodes=int(nodes) if nodes.isdigit() else 1,
        restarts=environ.get("SLURM_RESTART_COUNT", "0"),
        step=step if step.isdigit() and int(step) < 4294967290 else "",
        is_shell="SLURM_PTY_PORT" in environ or "SLURM_PTY_WIN_COL" in environ,
    )
