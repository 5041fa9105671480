"""The starts of a run's jobs, from files in its folder; finds jobs that nobody recorded, and
refuses the queue of another cluster."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from launcher.contract import typed
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.runs.folder import RunFolder, write_atomically
from launcher.targets.slurm import client
from launcher.targets.slurm.settings import CLUSTER_FILE, JOBS_DIR

_KEY = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)\.(started|stop|ended|fault)")
_JOB = re.compile(r"(\d+)\.job")
OF_SLURM = re.compile(r"(srun|slurmstepd[\w.-]*|sbatch|scontrol): ")
"""How a line of Slurm itself begins in a job's log."""
SUBMIT_LIMIT_S = 300.0
"""How long a launcher elsewhere may take from the run's folder to its job: it copies the code, and
Slurm's controller may be slow."""
SETUP_LINES = 3
"""How many of the last lines that ``slurm.setup`` printed are shown."""


@dataclass(frozen=True, kw_only=True)
class JobStart:
    """One start of a job, or of an element of an array.

    ``nodes`` are names. ``stop`` is the reason for which it was asked to stop, or for which Slurm
    has ended it; empty without one. ``code`` is the script's exit code, None while it runs.
    ``goes_on``: the script has requeued its job. ``is_fault``: a fault of the platform ended it.
    """

    job: int
    element: int | None
    restarts: int
    nodes: str = ""
    stop: str = ""
    code: int | None = None
    goes_on: bool = False
    is_fault: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its script has ended, and has not requeued its job."""
        return self.code is not None and not self.goes_on

    @property
    def name(self) -> str:
        """The id of the job or element, as Slurm's commands take it."""
        return str(self.job) if self.element is None else f"{self.job}_{self.element}"

    @property
    def key(self) -> str:
        """How the names of its files begin."""
        return f"{self.name}.{self.restarts}"


def read_starts(run: RunFolder) -> tuple[JobStart, ...]:
    """All starts so far, the oldest first. Reads each file anew, as other machines write them."""
    files_of: dict[tuple[int, int | None, int], dict[str, str]] = {}
    with contextlib.suppress(OSError):
        for path in sorted((run.path / JOBS_DIR).iterdir()):
            if match := _KEY.fullmatch(path.name):
                job, element, restarts, kind = match.groups()
                key = int(job), None if element is None else int(element), int(restarts)
                with contextlib.suppress(OSError):
                    files_of.setdefault(key, {})[kind] = path.read_text().strip()
    starts = (_start(*key, files) for key, files in files_of.items() if "started" in files)
    return tuple(sorted(starts, key=lambda s: (s.job, s.element or 0, s.restarts)))


def _start(job: int, element: int | None, restarts: int, files: dict[str, str]) -> JobStart:
    code, then, why, *_ = [*files.get("ended", "").split(), "", "", ""]
    return JobStart(
        job=job,
        element=element,
        restarts=restarts,
        nodes=files["started"],
        stop=files.get("stop") or why,
        code=int(code) if code.isdigit() else None,
        goes_on=then == "requeued",
        is_fault="fault" in files,
    )


def newest_starts(starts: tuple[JobStart, ...]) -> dict[int | None, JobStart]:
    """The last start of each element, or of the job (None), over all jobs of the run."""
    return {start.element: start for start in starts}


def read_jobs(run: RunFolder) -> tuple[int, ...]:
    """Ids of the jobs that were submitted for a run."""
    jobs = set()
    with contextlib.suppress(OSError):
        for path in (run.path / JOBS_DIR).iterdir():
            if match := _JOB.fullmatch(path.name) or _KEY.fullmatch(path.name):
                jobs.add(int(match[1]))
    return tuple(sorted(jobs))


def read_queue(run: RunFolder) -> tuple[client.QueuedJob, ...]:
    """A run's jobs in the queue, without jobs of another run that got the same number.

    Raises ``TargetError`` if the controller of another cluster answers.
    """
    jobs = read_jobs(run)
    queued = tuple(j for j in client.read_queue(jobs) if j.run_id in ("", run.run_id))
    if {*jobs} - {job.number for job in queued}:
        check_cluster(run)
    return queued


def write_cluster(run: RunFolder) -> None:
    """Records the name of the cluster that has the run's jobs, if its controller answers."""
    with contextlib.suppress(client.SlurmError):
        write_atomically(run.path / JOBS_DIR / CLUSTER_FILE, f"{client.read_cluster()}\n")


def check_cluster(run: RunFolder) -> None:
    """Raises ``TargetError`` if another cluster answers than the one that has the run's jobs."""
    with contextlib.suppress(FileNotFoundError):
        wanted = (run.path / JOBS_DIR / CLUSTER_FILE).read_text().strip()
        if (present := client.read_cluster()) != wanted:
            raise TargetError(
                f"{run.run_id} is on the cluster {wanted}, and {present} answers here",
                f"a login node of {wanted}, or export SLURM_CONF=FILE, its slurm.conf",
            )


def write_job(run: RunFolder, job: int) -> None:
    """Records a job that was submitted."""
    write_atomically(run.path / JOBS_DIR / f"{job}.job", "\n")


def record_queued(run: RunFolder) -> set[int]:
    """Records jobs that the queue has by their comment, and the folder does not; returns them."""
    new = set(client.find_jobs(run.run_id)) - set(read_jobs(run))
    for job in new:
        write_job(run, job)
    return new


def is_being_submitted(run: RunFolder) -> bool:
    """Whether a launcher that cannot be seen from here may be about to submit the run's job.

    Records a job that nobody recorded, as its launcher was killed just after sbatch.
    """
    if read_jobs(run) or record_queued(run):
        return False
    return run.is_elsewhere and SystemClock().wall() - run.submitted_at() < SUBMIT_LIMIT_S


def find_taken(run: RunFolder, error: client.SlurmError) -> None:
    """Records the job that a busy controller has accepted although sbatch failed with ``error``.

    Raises ``InputError`` if Slurm refused the job, ``TargetError`` if it may still accept it.
    """
    if not error.is_away and not error.hint:
        raise InputError(error.what, client.fix_of_refusal(error.what)) from error
    if not error.is_away:
        raise error
    with contextlib.suppress(client.SlurmError):
        if record_queued(run):
            return
    later = f"if squeue --me shows the job later: {typed.command('stop', run.run_id)}"
    raise TargetError(error.what, f"{error.hint}; {later}") from error


def by_hand(run: RunFolder, inside: int = 0, only: frozenset[int] | None = None) -> str:
    """How a person ends the run's jobs, ``only`` these elements, or its step ``inside`` a job."""
    if inside:
        return f"squeue --steps --jobs={inside} names its step; scancel {inside}.STEP"
    names = [str(job) for job in read_jobs(run)]
    if only is not None:
        names = [f"{job}_{element}" for job in names for element in sorted(only)]
    return f"scancel {' '.join(names)}" if names else "squeue --me, then scancel JOBID"


def last_words(run: RunFolder, start: JobStart) -> str:
    """The last line of the first node before its agent ran, or else of the script; may be empty."""
    names = (f"node-{start.element or 0}.log", f"{start.name}.log")
    return next((lines[-1] for name in names if (lines := _read_log(run, name))), "")


def setup_words(run: RunFolder, start: JobStart) -> str:
    """The last lines that ``slurm.setup`` printed: they may say why it failed."""
    name = f"{start.name}.log"
    printed = [line for line in _read_log(run, name) if not OF_SLURM.match(line)]
    return f"{name} has: {'; '.join(printed[-SETUP_LINES:])}" if printed else ""


def _read_log(run: RunFolder, name: str) -> list[str]:
    """The lines of a log that are not empty."""
    with contextlib.suppress(OSError):
        lines = (run.path / JOBS_DIR / name).read_text(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()]
    return []
