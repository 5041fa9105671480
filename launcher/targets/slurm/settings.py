"""A run's own settings on Slurm, and the files of its jobs in the run folder."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract.node_plan import Mount
from launcher.plan.target_settings import TargetSettings

JOBS_DIR = "slurm"
"""In the run folder: what the launcher and the program of the batch job tell each other.

``KEY`` names one start of one job: ``JOBID.RESTARTS``, or ``ARRAYJOBID_ELEMENT.RESTARTS``.

- ``JOBID.job``: a job that was submitted
- ``KEY.started``: the program runs; its text is the names of the nodes
- ``KEY.stop``: asks the agents of that start to stop; the program makes it empty, and whoever asks
  writes the reason (``contract.causes``) into it
- ``KEY.ended``: the program's last act: the exit code, and ``requeued`` or ``over``; then why Slurm
  has ended the start, if it did
- ``KEY.fault``: a fault of the platform ended the start; it counts against ``max_requeues``
- ``JOBID.log``, ``ARRAYJOBID_ELEMENT.log``: what the script and srun print in all starts
- ``node-INDEX.log``: what each node's srun task prints before its agent knows its own folder
"""
CLUSTER_FILE = "cluster"
"""In JOBS_DIR: the name of the cluster whose controller has the run's jobs."""
TASK_FILE = "node-plan.json"
"""In JOBS_DIR: the task (a ``NodeTask``) with which every agent is started."""


@dataclass(frozen=True, kw_only=True)
class SlurmSettings(TargetSettings):
    """What the batch script is made of; ``None`` leaves Slurm's default.

    ``options`` are all other options of sbatch, in their order, each a whole word such as
    ``--partition=gpu``. ``mounts`` are folders of the shared file system that containers see.
    ``notice_s`` is how long before the time limit the agents are asked to stop, 0 without a known
    limit. ``max_requeues`` is how often the script sends its job back after a fault of the
    platform; time limits do not count.
    """

    kind: str
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str = "python3"
    container: str | None = None
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    gpus: int = 0
    notice_s: int = 0
    requeue: bool = True
    max_requeues: int = 3
    inside: int = 0
    """The job in whose allocation the run's only step runs; 0 if the run has a job of its own."""

    @property
    def keeps_nodes(self) -> str:
        return "" if self.kind == "array" else "slurm.kind: array, whose nodes come and go"
