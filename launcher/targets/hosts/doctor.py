"""``doctor`` for machines reached over SSH: each alone, then each pair, then a run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from launcher.code.files import CodeFile
from launcher.code.place import CodePlace
from launcher.code.record import pack_code
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.records import parse_record
from launcher.doctor import judge, run
from launcher.doctor.finding import Finding, Status, failed, warning
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run
from launcher.plan.rendezvous import plan_backend
from launcher.targets.hosts import doctor_judge
from launcher.targets.hosts.doctor_judge import HostAnswer
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.nodes import read_image
from launcher.targets.hosts.plan import shared_folder, wanted_addresses
from launcher.targets.hosts.program.facts import run_probe
from launcher.targets.hosts.program.messages import CHECKPOINTS_DIR
from launcher.targets.hosts.program.requests import remove_run
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.hosts.survey import meet, read_host
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.machine import PORTS

OTHER_PYTHON = "--set hosts.python=PATH, or python: of that host in hosts.yaml"
PROBE_LIMIT_S = 40.0
"""The probe waits up to 10 s for nvidia-smi."""
PAIR_LIMIT_S = 60.0
"""How long the probe of two neighbours may take, to find a slow host."""
PAIRS_AT_ONCE = 8
"""So many pairs are measured at the same time."""


def diagnose_hosts(
    job: JobSpec, inventory: Inventory, run_root: Path, limit_s: float
) -> Iterator[Finding]:
    """As ``Room.diagnose``. The probe does not run if an earlier check has failed."""
    findings: list[Finding] = []
    ssh = Ssh(inventory)
    port = job.rdzv.port or random.SystemRandom().choice(PORTS)
    told = ssh.try_each(lambda session: _examine(session, job, port), inventory.hosts)
    answers = [
        HostAnswer(host=host, error=one) if isinstance(one, TargetError) else one
        for host, one in zip(inventory.hosts, told, strict=True)
    ]
    for finding in _look(ssh, answers, job, port):
        findings.append(finding)
        yield finding
    why = ""
    if any(finding.status is Status.FAILED for finding in findings):
        why = "correct what failed above"
    # Sending or pulling an image may take an hour, longer than any deadline here.
    elif any(f.check == doctor_judge.IMAGE and f.status is not Status.OK for f in findings):
        why = "bring the image to all hosts"
    if why:
        fix = f"{why}, then call doctor again"
        yield warning("all-reduce", f"{len(inventory.hosts)} hosts", "not tried", fix)
        return
    yield from _HostsProbe(job, inventory, run_root).diagnose(limit_s)


# -- before anything runs -------------------------------------------------------------------------


def _examine(session: Session, job: JobSpec, port: int) -> HostAnswer:
    found, bare = read_host(session, job, [port]), job.hosts.runtime == "python"
    answer = HostAnswer(host=session.host, found=found)
    own = f"{found.state_dir}/{CHECKPOINTS_DIR}"
    try:
        told = session.call(
            run_probe,
            program=run.PROGRAM.read_bytes(),
            python=(found.python if bare else "") or "python3",
            arguments=["node"],
            env=dict(job.env) if bare else {},
            checkpoint_dir=shared_folder(job, str(Path.cwd())) or own,
            wait_s=PROBE_LIMIT_S,
        )
    except TargetError as error:
        return replace(answer, node_error=error.what.partition(": ")[2] or error.what)
    return replace(answer, node=parse_record(judge.NodeAnswer, told))


def _look(ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec, port: int) -> Iterator[Finding]:
    for answer in answers:
        yield doctor_judge.judge_reachable(answer)
    fit = [answer for answer in answers if answer.error is None]
    offsets_s = {answer.host.name: answer.found.clock_offset_s for answer in fit}
    yield from doctor_judge.judge_clocks(offsets_s, plan_backend(job))
    yield from _judge_each(ssh, fit, job)
    yield from doctor_judge.judge_leases(fit, job)
    if len(fit) > 1:
        try:
            yield from _judge_together(ssh, fit, job, port)
        except TargetError as error:
            yield failed("pairs", f"{len(fit)} hosts", error.what, error.hint)


def _judge_each(ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec) -> Iterator[Finding]:
    bare = job.hosts.runtime == "python"
    for answer in answers:
        if not bare:
            yield from doctor_judge.judge_engine(answer)
        if answer.node is None:
            fix = OTHER_PYTHON
            yield failed("python, torch", answer.host.name, answer.node_error, fix)
            continue
        # In containers Python and folders differ from the host's; the run of the probe checks them.
        if bare:
            yield from judge.judge_environment(answer.node, answer.host.name, OTHER_PYTHON)
        yield from judge.judge_machine(answer.node, answer.host.name)
    if not bare and answers:
        own = read_image(answers[0].found.image or "")
        yield from doctor_judge.judge_images(answers, own, ssh.entering)
    nodes = {answer.host.name: answer.node for answer in answers if answer.node is not None}
    if bare:
        yield from judge.judge_equal(nodes)
    yield from judge.judge_equal_gpus(nodes)


def _judge_together(
    ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec, port: int
) -> Iterator[Finding]:
    hosts = [answer.host for answer in answers]
    candidates = [wanted_addresses(a.host, a.found.interfaces) for a in answers]
    folder = shared_folder(job, str(Path.cwd()))
    with ssh.sessions(hosts) as sessions:
        opened = [sessions[host.name] for host in hosts]
        met = meet(ssh, opened, candidates, folder)
    yield from doctor_judge.judge_ports(answers, port)
    yield from doctor_judge.judge_ways(hosts, candidates, met)
    yield from doctor_judge.judge_folder(hosts, met, folder)


# -- a run of the probe ---------------------------------------------------------------------------


class _HostsProbe:
    """Runs the probe on the job's hosts, and on pairs of them to find a slow host."""

    def __init__(self, job: JobSpec, inventory: Inventory, run_root: Path) -> None:
        self._inventory, self._run_root = inventory, run_root
        # The probe is the only file to copy, instead of the job's code.
        name = run.PROGRAM.name
        self._place = CodePlace(root=run.PROGRAM.parent, command=(name,))
        self._code = pack_code(self._place, [CodeFile(name, 0, None, False)])
        self._job = run.as_probe(job, name)

    def diagnose(self, limit_s: float) -> Iterator[Finding]:
        """The findings of the run."""
        try:
            plan, answers = self._run(self._inventory, self._job, limit_s)
        except LauncherError as error:
            yield failed("start", f"{len(self._inventory.hosts)} hosts", error.what, error.hint)
            return
        yield from run.judge_start(answers, limit_s)
        if self._job.hosts.runtime == "docker":
            for where, facts in answers.nodes.items():
                yield from judge.judge_environment(facts, where)
            yield from judge.judge_equal(answers.nodes)
        yield run.judge_speed(answers)
        if judge.is_slow(answers.all_reduce) and len(plan.nodes) > 2:
            hosts = [HostsSettings.of(plan).hosts[node.node_index].host for node in plan.nodes]
            yield from self._diagnose_pairs(hosts, min(limit_s, PAIR_LIMIT_S))

    def _run(
        self, inventory: Inventory, job: JobSpec, limit_s: float
    ) -> tuple[LaunchPlan, run.ProbeAnswers]:
        target = HostsTarget(self._run_root, inventory)
        target.code = self._code
        facts = target.facts(job)
        plan = plan_run(
            job,
            facts,
            run_id=new_run_id(run.RUN_NAME),
            place=self._place,
            code_hash=self._code.hash,
        )
        try:
            return plan, run.run_probe(plan, target, limit_s)
        finally:
            if job.checkpoint_dir is not None:
                own = Path(plan.checkpoint_dir)
                assert own.name == run.OWN_FOLDER, "as_probe has named it"
                hosts = [facts.host for facts in HostsSettings.of(plan).hosts]
                Ssh(inventory).try_each(
                    lambda session: session.call(
                        remove_run, run_dir=str(own), checkpoint_dir="", outputs_dir=""
                    ),
                    hosts,
                )

    def _diagnose_pairs(self, hosts: Sequence[Host], limit_s: float) -> Iterator[Finding]:
        """Measures each host with its two neighbours: one that is slow with both is the cause."""
        job = self._job.model_copy(update={"nnodes": replace(self._job.nnodes, min=2, max=2)})

        def is_slow(pair: tuple[Host, Host]) -> bool:
            with contextlib.suppress(LauncherError):
                _, answers = self._run(replace(self._inventory, hosts=pair), job, limit_s)
                return judge.is_slow(answers.all_reduce)
            return True

        ring = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
        slow: dict[tuple[str, str], bool] = {}
        # Groups of pairs in which no host is twice, so that no pair slows another one down.
        odd = [ring.pop()] if len(ring) % 2 else []
        for pairs in filter(None, (ring[::2], ring[1::2], odd)):
            names = [(one.name, other.name) for one, other in pairs]
            with ThreadPoolExecutor(max_workers=PAIRS_AT_ONCE) as pool:
                slow.update(zip(names, pool.map(is_slow, pairs), strict=True))
        yield from doctor_judge.judge_neighbours([host.name for host in hosts], slow)
