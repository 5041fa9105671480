"""``doctor`` for a Slurm cluster: its controller, partitions and lost nodes, and when the job would
start. Starts nothing unasked.

Slurm decides whether a job fits: ``sbatch --test-only`` gets the very script. Every command has a
limit, and a command that hangs is a finding.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcher.contract.errors import LauncherError
from launcher.doctor.diagnosis import diagnose_nodes
from launcher.doctor.finding import Finding, Status, failed, ok, warning
from launcher.job.spec import JobSpec
from launcher.job.values import NodeRange
from launcher.plan.launch_plan import new_run_id, plan_run
from launcher.runs.folder import check_folder
from launcher.targets.slurm.client import SlurmError, fix_of_refusal, run_command, try_script
from launcher.targets.slurm.script import render_script
from launcher.targets.slurm.target import SlurmTarget

PARTITION_FORMAT = "%P|%a|%l|%F|%G"
"""For ``sinfo``: name, state, time limit, nodes as ALLOCATED/IDLE/OTHER/TOTAL, and their GPUs."""
REASON_FORMAT = "%N|%T|%E"
"""For ``sinfo --list-reasons``: the reason comes last, as it may hold any character."""
NO_ANSWER = "ask an admin for: systemctl status slurmctld; running jobs go on without it"


def diagnose_slurm(
    job: JobSpec, folder: Path, run_root: Path, limit_s: float, *, ask_nodes: bool
) -> Iterator[Finding]:
    """As ``Room.diagnose``; ``ask_nodes`` runs a test job, which must end within ``limit_s``.

    The batch script goes into ``folder`` on this machine. ``run_root`` holds the run folders.
    """
    try:
        facts = SlurmTarget(run_root).facts(job)
        plan = plan_run(job, facts, run_id=new_run_id(job.name))
        script = folder / "job.sh"
        script.write_text(render_script(plan))
    except LauncherError as error:
        yield failed("plan", "job", error.what, error.hint)
        return
    try:
        yield ok("client", "this machine", run_command("sbatch", "--version").strip())
    except SlurmError as error:
        fix = error.hint or fix_of_refusal(error.what)
        yield failed("client", "this machine", error.what, fix)
        return
    answers = _judge_controller()
    yield answers
    if answers.status is Status.FAILED:
        return
    partition = job.slurm.partition or ""
    of_job = (f"--partition={partition}",) if partition else ("--all",)

    def sinfo(*options: str) -> list[str]:
        return run_command("sinfo", "--noheader", *of_job, *options).splitlines()

    try:
        yield from tell_partitions(sinfo(f"--format={PARTITION_FORMAT}"))
        yield from tell_lost_nodes(sinfo("--list-reasons", f"--format={REASON_FORMAT}"))
    except SlurmError as error:
        yield failed("partition", "cluster", error.what, error.hint or NO_ANSWER)
    try:
        yield judge_submission(try_script(script), accepted=True)
    except SlurmError as error:
        yield judge_submission(error.what, accepted=False)
    if ask_nodes:
        yield from _run_test_job(job, run_root, limit_s)


def _judge_controller() -> Finding:
    """Looks for ``Slurmctld(primary) at HOST is UP``, or the same of a backup."""
    fix = NO_ANSWER
    try:
        answer = run_command("scontrol", "ping")
    except SlurmError as error:
        answer, fix = error.what, error.hint or fix
    controllers = re.findall(r"Slurmctld\([^)]*\) at \S+ is \w+", answer)
    if any(line.endswith("is UP") for line in controllers):
        return ok("slurmctld", "cluster", "; ".join(controllers))
    return failed("slurmctld", "cluster", "; ".join(controllers) or answer, fix)


def _run_test_job(job: JobSpec, run_root: Path, limit_s: float) -> Iterator[Finding]:
    """Runs the probe as a job on one node; nothing of it is left in the queue or on disk."""
    # Overrides for the probe. Five minutes: a file server may take long to give a node its torch.
    probed = {
        "nnodes": NodeRange(1, 1),
        "stop_grace_s": 10,
        "slurm": job.slurm.model_copy(update={"time": "5", "requeue": False}),
    }
    was_there = run_root.is_dir()
    try:
        check_folder(run_root)
    except LauncherError as error:
        yield failed("run folder", str(run_root), error.what, error.hint)
        return
    run_root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=run_root, ignore_cleanup_errors=True
    ) as path:
        target = SlurmTarget(Path(path))
        began = time.monotonic()
        yield from diagnose_nodes(job.model_copy(update=probed), target, limit_s)
        if time.monotonic() - began >= limit_s:
            what = f"did not succeed within {limit_s:g} s"
            yield failed("test job", "queue", what, "squeue --start --me; or --limit SECONDS")
    if not was_there:
        with contextlib.suppress(OSError):
            run_root.rmdir()


# -- what Slurm's commands print, as findings: pure ------------------------------------------------


def tell_partitions(lines: Iterable[str]) -> Iterator[Finding]:
    """A row for each line of ``sinfo`` with ``PARTITION_FORMAT``; ``*`` marks the default."""
    for line in lines:
        if line.count("|") != PARTITION_FORMAT.count("|"):
            continue
        name, state, limit, counts, gres = line.split("|")
        _, idle, other, total = counts.split("/")
        what = f"{state}, time limit {limit}, {idle} of {total} nodes idle"
        what += f", {other} down or drained" if other != "0" else ""
        what += f", {gres}" if gres != "(null)" else ""
        if state == "up":
            yield ok("partition", name, what)
        else:
            yield warning("partition", name, what, "--set slurm.partition=NAME, one that is up")


def tell_lost_nodes(lines: Iterable[str]) -> Iterator[Finding]:
    """A row for each reason why nodes take no jobs, in the words of an admin or of Slurm."""
    for line in lines:
        nodes, state, reason = line.split("|", 2)
        fix = f"scontrol show node {nodes}; an admin: scontrol update NodeName={nodes} State=RESUME"
        yield warning("node", nodes, f"{state}: {reason}", fix)


def judge_submission(words: str, *, accepted: bool) -> Finding:
    """What ``sbatch --test-only`` says of the very script, such as when it would start."""
    words = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    words = words.removeprefix("sbatch: ").removeprefix("error: ")
    if not accepted:
        return failed("start", "sbatch", words, fix_of_refusal(words))
    return ok("start", "sbatch", words or "accepts the job")
