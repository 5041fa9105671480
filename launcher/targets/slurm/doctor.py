"""``doctor`` for a Slurm cluster: what its own commands say of a job. Starts nothing unasked.

Whether a job fits is Slurm's to say: ``sbatch --test-only`` is asked about the very script. Every
command has a limit, and one that hangs is a finding.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.contract.errors import LauncherError
from launcher.doctor.finding import Finding, Status, failed, ok
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import plan_run
from launcher.plan.run_id import new_run_id
from launcher.targets import short_command
from launcher.targets.slurm import doctor_judge
from launcher.targets.slurm.client import SlurmError, fix_of_refusal, run_command, try_script
from launcher.targets.slurm.doctor_job import run_test_job
from launcher.targets.slurm.script import render_script
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.target import SlurmTarget

LIMIT_S = 5.0
"""How long a command that does not ask the cluster may take."""
MUNGE = 'munge --no-input "$@" | unmunge --no-output --metadata=/dev/null "$@"'
NOT_INSTALLED = 127
"""How the shell ends where there is no such program."""
NO_ANSWER = "ask an admin for: systemctl status slurmctld; running jobs go on without it"
FIND_MOUNT = ("findmnt", "--noheadings", "--output=FSTYPE,SOURCE", "--target")
"""Prints the type and the source of the file system that holds a folder."""
SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
"""Where the client finds its configuration without ``SLURM_CONF``."""


def diagnose_slurm(
    job: JobSpec, folder: Path, run_root: Path, limit_s: float, *, ask_nodes: bool
) -> Iterator[Finding]:
    """As ``Room.diagnose``; ``ask_nodes`` runs a test job, which must end within ``limit_s``.

    Only this machine sees ``folder``, which takes the batch script. ``run_root`` holds the run
    folders.
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
    signs = list(_judge_munge())
    yield from signs
    unsigned = any(finding.status is Status.FAILED for finding in signs)
    answers = _judge_controller("munge first, above" if unsigned else NO_ANSWER)
    yield answers
    if answers.status is Status.FAILED:
        return
    partition = job.slurm.partition or ""
    of_job = (f"--partition={partition}",) if partition else ("--all",)

    def sinfo(*options: str) -> list[str]:
        return run_command("sinfo", "--noheader", *of_job, *options).splitlines()

    rows = f"--format={doctor_judge.PARTITION_FORMAT}"
    yield from _try("partition", lambda: doctor_judge.tell_partitions(sinfo(rows)))
    reasons = ("--list-reasons", f"--format={doctor_judge.REASON_FORMAT}")
    yield from _try("node", lambda: doctor_judge.tell_lost_nodes(sinfo(*reasons)))
    yield from _try("time to stop", lambda: _judge_stop(partition, job.stop_grace_s))
    yield _judge_folder(run_root)
    try:
        yield doctor_judge.judge_submission(try_script(script), accepted=True)
    except SlurmError as error:
        yield doctor_judge.judge_submission(error.what, accepted=False)
    if ask_nodes:
        yield from run_test_job(SlurmSettings.of(plan), run_root, limit_s)


def _try(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of ``look``, or one that says that Slurm did not answer."""
    try:
        yield from look()
    except SlurmError as error:
        yield failed(check, "cluster", error.what, error.hint or NO_ANSWER)


def _judge_controller(fix: str) -> Finding:
    """``Slurmctld(primary) at HOST is UP``, and the same of each backup."""
    try:
        said = run_command("scontrol", "ping")
    except SlurmError as error:
        said = error.what
    told = re.findall(r"Slurmctld\([^)]*\) at \S+ is \w+", said)
    if any(line.endswith("is UP") for line in told):
        return ok("slurmctld", "cluster", "; ".join(told))
    return failed("slurmctld", "cluster", "; ".join(told) or said, fix)


def _judge_munge() -> Iterator[Finding]:
    """Whether this machine's munged signs a message, and accepts its own signature."""
    options = (f"--socket={socket}",) if (socket := _munge_socket()) else ()
    said = short_command.ask(("sh", "-c", MUNGE, "munge", *options), LIMIT_S)
    if said is not None and said.code == NOT_INSTALLED:
        # A cluster may authenticate otherwise; where it does not, Slurm's commands fail.
        return
    if said is None or said.code:
        told = said.err.strip() if said else f"no answer within {LIMIT_S:g} s"
        fix = "systemctl restart munge on this machine, as root"
        yield failed("munge", "this machine", "; ".join(told.splitlines()), fix)
        return
    yield ok("munge", "this machine", "signs and verifies")


def _munge_socket() -> str:
    """The socket that Slurm's configuration names in ``AuthInfo``; empty where it names none."""
    for file in filter(None, (os.environ.get("SLURM_CONF"), *SLURM_CONF)):
        with contextlib.suppress(OSError):
            text = Path(file).read_text(errors="replace")
            found = re.search(r"^\s*AuthInfo\s*=\s*(?:.*,)?socket=([^,\s]+)", text, re.M | re.I)
            return found[1] if found else ""
    return ""


def _judge_stop(partition: str, grace_s: float) -> Iterator[Finding]:
    config = doctor_judge.parse_config(run_command("scontrol", "show", "config"))
    shown = run_command("scontrol", "--all", "--oneliner", "show", "partition")
    yield from doctor_judge.judge_stop(config, shown, partition, grace_s)


def _judge_folder(run_root: Path) -> Finding:
    folder = run_root.resolve()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    told = short_command.read_output((*FIND_MOUNT, str(there)), LIMIT_S)
    return doctor_judge.judge_folder(str(folder), told or "an unknown type")
