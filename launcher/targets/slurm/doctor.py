"""``doctor`` for a Slurm cluster: what its own commands say of a job. Starts nothing unasked.

Every command has a limit, and one that hangs is a finding.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.contract.clock import SystemClock
from launcher.contract.errors import LauncherError
from launcher.doctor.finding import Finding, Status, failed, ok, warning
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import new_run_id, plan_run
from launcher.targets import proc
from launcher.targets.slurm import doctor_fit, doctor_judge, site
from launcher.targets.slurm.client import SlurmError, fix_of_refusal, run_command, try_script
from launcher.targets.slurm.doctor_job import run_test_job
from launcher.targets.slurm.script import render_script
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.target import SlurmTarget

LIMIT_S = 15.0
"""Slurm's commands themselves give up after ten seconds without an answer."""
MUNGE_LIMIT_S = 5.0
NO_ANSWER = "an admin: systemctl status slurmctld there; jobs that run go on without it"
MOUNTS = Path("/proc/self/mountinfo")
SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
"""Where the client finds its configuration without ``SLURM_CONF``."""


def diagnose_slurm(
    job: JobSpec, folder: Path, run_root: Path, limit_s: float, *, ask_nodes: bool
) -> Iterator[Finding]:
    """As ``diagnose``; ``ask_nodes`` runs a test job, which must end within ``limit_s``.

    ``folder`` is this machine's own; below ``run_root`` runs of the job will have theirs.
    """
    try:
        facts = SlurmTarget(run_root).facts(job)
        plan = plan_run(job, facts, run_id=new_run_id(job.name, os.urandom(3)))
        script = render_script(plan)
    except LauncherError as error:
        yield failed("plan", "job", error.what, error.hint)
        return
    try:
        client = run_command("sbatch", "--version", limit_s=LIMIT_S)
    except SlurmError as error:
        fix = error.hint or fix_of_refusal(error.what)
        yield failed("client", "this machine", error.what, fix)
        return
    signs = list(_judge_munge(folder))
    yield from signs
    unsigned = any(finding.status is Status.FAILED for finding in signs)
    answers = _judge_controller("munge first, above" if unsigned else NO_ANSWER)
    yield answers
    if answers.status is Status.FAILED:
        return
    try:
        config = site.parse_config(run_command("scontrol", "show", "config", limit_s=LIMIT_S))
    except SlurmError as error:
        yield failed("slurmctld", "cluster", error.what, error.hint or NO_ANSWER)
        return
    settings = SlurmSettings.of(plan)
    asked = doctor_fit.parse_request(job, settings)
    yield from _Diagnosis(asked, script, config).diagnose(client, folder, run_root)
    if ask_nodes:
        yield from run_test_job(settings, run_root, limit_s)


def _judge_controller(fix: str) -> Finding:
    """``Slurmctld(primary) at HOST is UP``, and the same of each backup."""
    try:
        said = run_command("scontrol", "ping", limit_s=LIMIT_S)
    except SlurmError as error:
        said = error.what
    told = re.findall(r"Slurmctld\([^)]*\) at \S+ is \w+", said)
    if any(line.endswith("is UP") for line in told):
        return ok("slurmctld", "cluster", "; ".join(told))
    return failed("slurmctld", "cluster", "; ".join(told) or said, fix)


def _judge_munge(folder: Path) -> Iterator[Finding]:
    """Whether this machine's munged signs, and knows its own signature again."""
    options = (f"--socket={socket}",) if (socket := _munge_socket()) else ()
    sealed = str(folder / "munge")
    for argv in (
        ("munge", *options, "--no-input", f"--output={sealed}"),
        ("unmunge", *options, f"--input={sealed}", "--metadata=/dev/null", "--no-output"),
    ):
        try:
            said = proc.ask(argv, MUNGE_LIMIT_S)
        except OSError:
            # A cluster may authenticate otherwise; where it does not, Slurm's commands fail.
            return
        if said is None or said.code:
            told = f"no answer within {MUNGE_LIMIT_S:g} s" if said is None else said.err.strip()
            fix = "systemctl restart munge on this machine, as root"
            yield failed("munge", "this machine", told or f"{argv[0]} failed", fix)
            return
    yield ok("munge", "this machine", "signs and verifies")


def _munge_socket() -> str:
    """What ``AuthInfo`` of Slurm's configuration says; empty for munge's own place."""
    for file in filter(None, (os.environ.get("SLURM_CONF"), *SLURM_CONF)):
        with contextlib.suppress(OSError):
            text = Path(file).read_text(errors="replace")
            found = re.search(r"^\s*AuthInfo\s*=\s*(?:.*,)?socket=([^,\s]+)", text, re.M | re.I)
            return found[1] if found else ""
    return ""


class _Diagnosis:
    """One job against one cluster whose controller answers."""

    def __init__(
        self, asked: doctor_fit.SlurmRequest, script: str, config: Mapping[str, str]
    ) -> None:
        self._asked, self._script, self._config = asked, script, config

    def diagnose(self, client: str, folder: Path, run_root: Path) -> Iterator[Finding]:
        partitions, nodes = self._read_partitions(), self._read_nodes()
        if isinstance(partitions, Finding) or isinstance(nodes, Finding):
            yield from (found for found in (partitions, nodes) if isinstance(found, Finding))
            return
        yield doctor_judge.judge_versions(client, self._config, nodes)
        names = self._asked.partitions or ("",)
        for name in names:
            yield from doctor_fit.judge_partition(name, partitions, self._asked)
        named = [node for node in nodes if node.partition in names or self._is_default(node)]
        if named:
            yield from doctor_fit.judge_nodes(named, self._asked)
        yield self._judge_account()
        used = [partitions[node.partition] for node in named if node.partition in partitions]
        yield from doctor_judge.judge_stop(self._config, used, self._asked)
        yield _judge_folder(run_root, nodes)
        yield self._judge_submission(folder)

    def _is_default(self, node: site.ClusterNode) -> bool:
        return not self._asked.partitions and node.is_default

    def _read_partitions(self) -> dict[str, dict[str, str]] | Finding:
        try:
            said = run_command(*_PARTITIONS, limit_s=LIMIT_S)
        except SlurmError as error:
            return failed("partition", "cluster", error.what, error.hint or "sinfo")
        return site.parse_partitions(said)

    def _read_nodes(self) -> tuple[site.ClusterNode, ...] | Finding:
        try:
            said = run_command(*_NODES, limit_s=LIMIT_S)
        except SlurmError as error:
            return failed("nodes", "cluster", error.what, error.hint or "sinfo")
        return site.parse_nodes(said)

    def _judge_account(self) -> Finding:
        associations, user = "", getpass.getuser()
        if not self._config.get("AccountingStorageType", "").endswith("/none"):
            try:
                associations = run_command(
                    *("sacctmgr", "--noheader", "--parsable2", "show", "associations"),
                    *(f"user={user}", f"cluster={self._config.get('ClusterName', '')}"),
                    "format=Account,Partition,QOS",
                    limit_s=LIMIT_S,
                )
            except SlurmError as error:
                fix = f"sacctmgr show associations user={user}"
                return warning("account", user, error.what, fix)
        return doctor_judge.judge_account(self._config, associations, self._asked)

    def _judge_submission(self, folder: Path) -> Finding:
        script = folder / "job.sh"
        script.write_text(self._script)
        try:
            words, accepted = try_script(script, LIMIT_S), True
        except SlurmError as error:
            words, accepted = error.what, False
        now = SystemClock().wall()
        return doctor_judge.judge_submission(words, accepted=accepted, now=now)


_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
_NODES = ("sinfo", "--all", "--noheader", "--Node", f"--format={site.NODE_FORMAT}")


def _judge_folder(run_root: Path, nodes: Sequence[site.ClusterNode]) -> Finding:
    folder, own = str(run_root.resolve()), socket.gethostname().partition(".")[0]
    hosts = {node.host.partition(".")[0] for node in nodes}
    try:
        system = site.parse_file_system(MOUNTS.read_text(errors="replace"), folder)
    except OSError:
        system = site.FileSystem(type="?", source="?")
    return doctor_judge.judge_folder(folder, system, one_machine=hosts == {own})
