"""Slurm's own commands, each with a limit: the fix for what sbatch refuses, and what the state of
an ended job means."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.contract.causes import Cause
from launcher.contract.errors import TargetError
from launcher.targets.subprocesses import short_command

LIMIT_S = 20.0
"""The limit of a command: Slurm's own tries last far longer if the controller is away."""
OF_CLUSTER = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT"))
"""Variables that say which cluster is asked, and as whom."""
_FORMAT = "%A|%F|%K|%T|%r|%k"
"""The comment comes last, as it may hold any character."""
COMMENT = "launcher:"
_UNKNOWN = re.compile(r"Invalid job id specified|Invalid job array id|already completed", re.I)
_AWAY = re.compile(
    r"Unable to contact slurm controller|Connection refused|timed out|Socket timed out", re.I
)
OUT_OF_REACH = (
    ("configuration source", "export SLURM_CONF=FILE, the cluster's slurm.conf; or a login node"),
    ("protocol authentication error", "munge -n | unmunge tells what munge lacks on this machine"),
)
"""Parts of errors of commands that fail before they ask the controller, with the fix."""
REFUSALS = (
    (
        "accounting/qos policy",
        "wait for jobs of yours (squeue --me), or ask for less: "
        "sacctmgr show qos, sacctmgr show associations user=$USER have the limits",
    ),
    ("invalid partition", "--set slurm.partition=NAME (sinfo --summarize lists them)"),
    ("invalid account", "--set slurm.account=NAME (sacctmgr show associations user=$USER)"),
    ("invalid qos", "--set slurm.qos=NAME (sacctmgr show associations user=$USER format=qos)"),
    ("invalid feature", "--set slurm.constraint=NAME (sinfo --format '%P %f' lists them)"),
    ("reservation", "--set slurm.reservation=NAME (scontrol show reservation lists them)"),
    ("time limit", "--set slurm.time=SHORTER (scontrol show partition: MaxTime)"),
    ("node count", "--nnodes FEWER (scontrol show partition: MaxNodes, MinNodes)"),
    ("node configuration", "fewer nodes, GPUs, cores or memory: sinfo --Node --long has all"),
    ("invalid generic resource", "--set slurm.gpus_per_node=N (sinfo --format '%P %G')"),
    ("more processors", "--set slurm.cpus_per_task=FEWER (sinfo --format '%P %c')"),
    ("contact slurm controller", "scontrol ping; wait, or ask an admin"),
    *OUT_OF_REACH,
)
"""Parts of what sbatch says when it refuses a job, with the fix."""
NOT_NOW = "Requested node configuration is not available"
"""What ``sbatch --test-only`` says of nodes that are down or drained; sbatch itself would wait."""
REASON_OF_STATE = {
    "TIMEOUT": (Cause.PREEMPTED, "the time limit"),
    "DEADLINE": (Cause.PREEMPTED, "the deadline"),
    "PREEMPTED": (Cause.PREEMPTED, "preempted by another job"),
    "NODE_FAIL": (Cause.NODE_LOST, "a node failed"),
    "BOOT_FAIL": (Cause.NODE_LOST, "a node did not boot"),
    "OUT_OF_MEMORY": (Cause.OUT_OF_MEMORY, "out of memory"),
    "CANCELLED": (Cause.STOP_REQUESTED, "cancelled by scancel"),
    "REVOKED": (Cause.STOP_REQUESTED, "revoked"),
}
"""What Slurm's state of an ended job means. For other states, exit codes decide."""
ENDED_STATES = frozenset(("COMPLETED", "FAILED", *REASON_OF_STATE))


class SlurmError(TargetError):
    """A command that failed, in Slurm's own words. ``is_away``: the controller did not answer."""

    def __init__(self, what: str, hint: str, *, is_away: bool) -> None:
        super().__init__(what, hint)
        self.is_away = is_away


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """One job, or one element of an array, as squeue shows it.

    ``number`` is the id of the job, or of the array that has the ``element`` (None without array);
    ``job_id`` is the element's own, by which alone ``srun`` knows it.
    ``why`` is why it waits, such as ``Priority``. ``run_id`` is the launcher's run that its comment
    names, if any.
    """

    number: int
    element: int | None
    state: str
    why: str
    run_id: str = ""
    job_id: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, although squeue still shows it."""
        return self.state in ENDED_STATES

    @property
    def name(self) -> str:
        """The id as Slurm's commands take it: ``12`` or ``12_3``."""
        return str(self.number) if self.element is None else f"{self.number}_{self.element}"


def without_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands, without options that a person has set in it. Pure.

    ``SBATCH_*`` would overrule the script's own options, and the new job's nodes would get the
    variables of a job around this process. ``SQUEUE_PARTITION`` and the like hide jobs, which would
    count as gone. With ``SCANCEL_INTERACTIVE`` scancel would wait for a person's answer.
    """
    drop = ("SBATCH_", "SRUN_", "SLURM_", "SQUEUE_", "SCANCEL_", "SINFO_")
    return {k: v for k, v in environ.items() if k in OF_CLUSTER or not k.startswith(drop)}


def run_command(*argv: str, limit_s: float | None = None) -> str:
    """Returns what a command prints within ``limit_s``, by default ``LIMIT_S``.

    Raises ``SlurmError`` with its own words.
    """
    limit_s = limit_s or LIMIT_S
    try:
        end = short_command.ask(argv, limit_s, env=without_defaults(os.environ))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise SlurmError(
            f"{argv[0]}: {error.strerror}: this machine has no Slurm client",
            "run it on a login node of the cluster, or put Slurm's commands on PATH",
            is_away=False,
        ) from error
    except OSError as error:
        # Such as no room for another process: it may be answered later.
        fix = "free -m and ulimit -u tell what this machine lacks"
        raise SlurmError(f"{argv[0]}: {error.strerror}", fix, is_away=True) from error
    if end is None:
        raise SlurmError(
            f"{argv[0]} gave no answer within {limit_s:g} s",
            "scontrol ping tells whether the controller answers",
            is_away=True,
        )
    if end.code:
        text = end.err.strip() or end.out.strip() or f"exit code {end.code}"
        lines = [line.removeprefix(f"{argv[0]}: ") for line in text.splitlines()]
        is_away = bool(_AWAY.search(end.err))
        ping = "scontrol ping tells whether the controller answers"
        hint = ping if is_away else _find_fix(text, OUT_OF_REACH)
        what = f"{argv[0]}: {'; '.join(lines)}"
        raise SlurmError(what, hint, is_away=is_away)
    # What sbatch says of a script that it only tries is on stderr.
    return end.out or end.err


def submit_script(script: Path, *options: str) -> int:
    """Submits a batch script; returns the job's id. ``options`` overrule those in it.

    Raises ``SlurmError``.
    """
    argv = ("sbatch", "--parsable", *options, str(script))
    # A loaded controller takes long, and a job whose id nobody learns is lost.
    out = run_command(*argv, limit_s=3 * LIMIT_S)
    return int(out.strip().splitlines()[-1].partition(";")[0])


def fix_of_refusal(words: str) -> str:
    """The fix for a job that sbatch refused with these words."""
    return _find_fix(words, REFUSALS) or "sinfo --summarize, man sbatch, or ask an admin"


def _find_fix(words: str, fixes: tuple[tuple[str, str], ...]) -> str:
    return next((fix for part, fix in fixes if part in words.lower()), "")


def try_script(script: Path) -> str:
    """Asks Slurm about a batch script without submitting it; returns, say, when it would start.

    Raises ``SlurmError`` if Slurm would refuse the script.
    """
    return run_command("sbatch", "--test-only", str(script)).strip()


def read_queue(jobs: Iterable[int]) -> tuple[QueuedJob, ...]:
    """The state of jobs and of each element of arrays, without jobs that ended long ago."""
    ids = ",".join(map(str, sorted(jobs)))
    if not ids:
        return ()
    try:
        out = run_command(
            *("squeue", "--noheader", "--array", "--states=all"),
            *(f"--jobs={ids}", f"--format={_FORMAT}"),
        )
    except SlurmError as error:
        if _UNKNOWN.search(error.what):
            return ()
        raise
    return tuple(_parse(line) for line in out.splitlines() if line.count("|") >= _FORMAT.count("|"))


def _parse(line: str) -> QueuedJob:
    fields = line.strip().split("|", _FORMAT.count("|"))
    job, array, element, state, why, comment = fields
    is_element = element.isdigit()
    return QueuedJob(
        number=int(array if is_element else job),
        element=int(element) if is_element else None,
        state=state,
        why=why,
        run_id=comment.removeprefix(COMMENT) if comment.startswith(COMMENT) else "",
        job_id=int(job),
    )


def cancel(names: Iterable[str]) -> None:
    """Cancels jobs, or elements such as ``12_3`` and steps; ended ones are no error.

    Raises ``SlurmError``.
    """
    if wanted := tuple(names):
        try:
            run_command("scancel", *wanted)
        except SlurmError as error:
            if not _UNKNOWN.search(error.what):
                raise


def start_within(names: Iterable[str], after_s: int) -> None:
    """Has Slurm hold jobs and elements back for ``after_s``, not until their ``BeginTime``.

    Raises ``SlurmError``, also if one of them no longer waits.
    """
    run_command("scontrol", "update", f"JobId={','.join(names)}", f"StartTime=now+{after_s}")


def find_jobs(run_id: str) -> tuple[int, ...]:
    """The run's jobs in the queue, found by their comment; also jobs submitted by hand."""
    out = run_command("squeue", "--me", "--noheader", "--format=%F|%k")
    pairs = (line.strip().partition("|")[::2] for line in out.splitlines())
    return tuple(sorted({int(job) for job, comment in pairs if comment == comment_of(run_id)}))


def comment_of(run_id: str) -> str:
    """The comment that marks a run's jobs in the queue."""
    return f"{COMMENT}{run_id}"


@functools.cache
def read_cluster() -> str:
    """The name of the cluster whose controller answers here. Raises ``SlurmError``."""
    name = re.search(r"^ClusterName\s*=\s*(\S+)", run_command("scontrol", "show", "config"), re.M)
    return name[1] if name else ""
