"""A run inside of an allocation that is there already: its nodes, by srun, and no job of its own.

The batch script is the same, and runs as a process of this machine, whose ``srun`` takes the nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import KeyInputError
from launcher.follow.target import RunEnd
from launcher.job.values import NodeRange
from launcher.runs.folder import RunFolder, write_atomically
from launcher.targets import proc
from launcher.targets.slurm import client
from launcher.targets.slurm.client import QueuedJob
from launcher.targets.slurm.follow import SlurmDriver, end_of
from launcher.targets.slurm.settings import JOBS_DIR, SlurmSettings
from launcher.targets.slurm.starts import JobStart, newest_starts, read_starts
from launcher.targets.slurm_process import SlurmProcess, read_slurm

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.plan.target_facts import TargetFacts

STEP_FORMAT = "--format=%i|%j"


def find_allocation(environ: Mapping[str, str]) -> SlurmProcess | None:
    """This process as a script or shell of an allocation; None elsewhere, in a task too."""
    process = read_slurm(environ)
    return None if process is None or process.is_task else process


def fit_job(job: JobSpec, allocation: SlurmProcess) -> JobSpec:
    """The job on the allocation's nodes: all of them, if it names no number.

    Raises ``InputError`` where it needs more.
    """
    if "nnodes" not in job.model_fields_set:
        nodes = NodeRange(allocation.nodes, allocation.nodes)
    elif job.nnodes.min > allocation.nodes:
        raise KeyInputError(
            ("nnodes",),
            f"{job.nnodes}, and job {allocation.job} has {allocation.nodes}, in which this runs",
            f"--nnodes {allocation.nodes}, a larger allocation, or --on slurm for a job of its own",
        )
    else:
        nodes = NodeRange(job.nnodes.min, min(job.nnodes.max, allocation.nodes))
    return job.model_copy(update={"nnodes": nodes})


def fit_facts(facts: TargetFacts, allocation: SlurmProcess) -> TargetFacts:
    """The facts of a run that needs no job: one set of nodes, which nobody requeues."""
    own = facts.own
    assert isinstance(own, SlurmSettings)
    nodes = f"{len(facts.nodes)} of its {allocation.nodes} nodes"
    return replace(
        facts,
        place=f"Slurm, job {allocation.job}, {nodes}",
        own=replace(
            own, inside=allocation.job, kind="allocation", requeue=False, notice_s=0, options=()
        ),
    )


def start_script(
    run: RunFolder, nodes: int, allocation: SlurmProcess, environ: dict[str, str]
) -> int:
    """Starts the batch script as a process of this machine; its pid. Raises ``OSError``."""
    count = str(nodes)
    env = {
        **environ,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        # By which it is found again.
        protocol.RUN_ID: run.run_id,
    }
    # Those of a shell of `srun --pty` are that step's.
    env = {name: text for name, text in env.items() if not name.startswith("SLURM_STEP")}
    if allocation.step:
        env["SLURM_OVERLAP"] = "1"
    console = run.path / JOBS_DIR / f"{allocation.job}.log"
    script = str(run.path / protocol.ARTIFACT_FILE)
    return proc.start(("bash", script), cwd=str(Path.cwd()), env=env, console=console)


def find_step(run_id: str, job: int) -> str:
    """The run's step as it is typed, ``77.0``; empty where there is none. Asks the controller."""
    told = client.run_command("squeue", "--noheader", "--steps", f"--jobs={job}", STEP_FORMAT)
    pairs = (line.strip().partition("|")[::2] for line in told.splitlines())
    return next((step for step, name in pairs if name == run_id), "")


def cancel_step(run_id: str, job: int) -> None:
    """Ends the run's step; the job around it goes on. Raises ``SlurmError``."""
    if step := find_step(run_id, job):
        client.run_command("scancel", step)


def step_by_hand(job: int) -> str:
    """How a person ends the run's step."""
    return f"squeue --steps --jobs={job} names its step; scancel {job}.STEP"


class InsideDriver(SlurmDriver):
    """Also notices a script that ended without its last word: the job around it goes on."""

    pid_of_script: Callable[[], int] | None = None

    def _begin(self) -> None:
        # No job of its own was submitted, of which one would be told.
        with contextlib.suppress(RuntimeError):  # it was begun by an earlier turn
            self._watch.start()

    def _cancelled(self) -> tuple[str, str]:
        job = SlurmSettings.of(self.plan).inside
        return f"its step of job {job}", step_by_hand(job)

    def turn(self) -> RunEnd | None:
        if (end := super().turn()) is not None:
            return end
        if (code := self._code_of_script()) is None:
            return None
        if not (starts := newest_starts(read_starts(self._run))):
            # In the lines of slurm.setup, whose codes mean nothing to us.
            job, code = SlurmSettings.of(self.plan).inside, code if code >= 128 else 1
            return end_of(self._run, JobStart(job=job, element=None, restarts=0, code=code))
        for start in starts.values():
            if start.code is None:
                path = self._run.path / JOBS_DIR / f"{start.key}.ended"
                write_atomically(path, f"{code or 1} over\n")
        return None

    def _judge_gone(
        self, starts: tuple[JobStart, ...], jobs: tuple[QueuedJob, ...]
    ) -> RunEnd | None:
        """As elsewhere, but a script that lives may still be at its first lines."""
        lives = self._script() and self._code_of_script() is None
        return None if lives else super()._judge_gone(starts, jobs)

    def _script(self) -> int:
        return self.pid_of_script() if self.pid_of_script else 0

    def _code_of_script(self) -> int | None:
        """None while it runs, and where another launcher has started it."""
        pid = self._script()
        return proc.poll(pid) if pid else None


def describe_unused(job: JobSpec) -> list[str]:
    """A line about keys that the allocation has decided already, if there are any. Pure."""
    given = sorted(job.slurm.model_fields_set - {"setup", "python", "container", "image"})
    keys = ", ".join(f"slurm.{key}" for key in given)
    return [f"{keys}: has no use in an allocation that is there already"] if given else []
