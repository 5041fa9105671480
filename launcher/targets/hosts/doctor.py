"""``doctor`` for machines reached over SSH: each alone, then each pair, then a run."""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.code.files import CodeFile
from launcher.code.place import CodePlace
from launcher.code.record import pack_code
from launcher.contract import typed
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.records import parse_record
from launcher.doctor import judge, run
from launcher.doctor.finding import Finding, Status, failed, ok, warning
from launcher.doctor.judge import NodeAnswer
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run
from launcher.plan.rendezvous import plan_backend
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.nodes import Image, read_image
from launcher.targets.hosts.plan import (
    CLOCK_LIMIT_S,
    decide_addresses,
    decide_unshared,
    shared_folder,
    wanted_addresses,
)
from launcher.targets.hosts.program.facts import run_probe
from launcher.targets.hosts.program.messages import CHECKPOINTS_DIR, Address, HostReport
from launcher.targets.hosts.program.requests import remove_run
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.hosts.survey import Reachability, free_gpus, meet, read_host, why_held
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.machine import PORTS

IMAGE = "image"
OTHER_PYTHON = "--set hosts.python=PATH, or python: of that host in hosts.yaml"
PROBE_LIMIT_S = 40.0
"""The probe waits up to 10 s for nvidia-smi."""
PAIR_LIMIT_S = 60.0
"""How long the probe of two neighbours may take, to find a slow host."""
PAIRS_AT_ONCE = 8
"""So many pairs are measured at the same time."""


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """One host's answer; ``error`` says why there is none.

    ``report`` is what a start needs to know, ``node`` what the probe reports of the host's Python
    and machine, ``node_error`` why the probe reports nothing.
    """

    host: Host
    error: TargetError | None = None
    report: HostReport = field(default_factory=HostReport)
    node: NodeAnswer | None = None
    node_error: str = ""


def diagnose_hosts(
    job: JobSpec, inventory: Inventory, run_root: Path, limit_s: float
) -> Iterator[Finding]:
    """As ``Room.diagnose``. The probe does not run if an earlier check has failed."""
    findings: list[Finding] = []
    ssh = Ssh(inventory)
    port = job.rdzv.port or random.SystemRandom().choice(PORTS)
    answered = ssh.try_each(lambda session: _examine(session, job, port), inventory.hosts)
    answers = [
        HostAnswer(host=host, error=answer) if isinstance(answer, TargetError) else answer
        for host, answer in zip(inventory.hosts, answered, strict=True)
    ]
    for finding in _judge_before(ssh, answers, job, port):
        findings.append(finding)
        yield finding
    why = ""
    if any(finding.status is Status.FAILED for finding in findings):
        why = "correct what failed above"
    # Sending or pulling an image may take an hour, longer than any deadline here.
    elif any(f.check == IMAGE and f.status is not Status.OK for f in findings):
        why = "bring the image to all hosts"
    if why:
        fix = f"{why}, then call doctor again"
        yield warning("all-reduce", f"{len(inventory.hosts)} hosts", "not tried", fix)
        return
    yield from _judge_run(job, inventory, run_root, limit_s)


# -- before anything runs -------------------------------------------------------------------------


def _examine(session: Session, job: JobSpec, port: int) -> HostAnswer:
    report, bare = read_host(session, job, [port]), job.hosts.runtime == "python"
    answer = HostAnswer(host=session.host, report=report)
    folder = f"{report.state_dir}/{CHECKPOINTS_DIR}"
    try:
        printed = session.call(
            run_probe,
            program=run.PROGRAM.read_bytes(),
            python=(report.python if bare else "") or "python3",
            arguments=["node"],
            env=dict(job.env) if bare else {},
            checkpoint_dir=shared_folder(job, str(Path.cwd())) or folder,
            wait_s=PROBE_LIMIT_S,
        )
    except TargetError as error:
        return replace(answer, node_error=error.what.partition(": ")[2] or error.what)
    return replace(answer, node=parse_record(NodeAnswer, printed))


def _judge_before(
    ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec, port: int
) -> Iterator[Finding]:
    for answer in answers:
        yield judge_reachable(answer)
    fit = [answer for answer in answers if answer.error is None]
    offsets_s = {answer.host.name: answer.report.clock_offset_s for answer in fit}
    yield from judge_clocks(offsets_s, plan_backend(job))
    yield from _judge_each(ssh, fit, job)
    yield from judge_leases(fit, job)
    if len(fit) > 1:
        try:
            yield from _judge_together(ssh, fit, job, port)
        except TargetError as error:
            yield failed("pairs", f"{len(fit)} hosts", error.what, error.hint)


def _judge_each(ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec) -> Iterator[Finding]:
    bare = job.hosts.runtime == "python"
    for answer in answers:
        if not bare:
            yield from judge_engine(answer)
        if answer.node is None:
            fix = OTHER_PYTHON
            yield failed("python, torch", answer.host.name, answer.node_error, fix)
            continue
        # In containers Python and folders differ from the host's; the run of the probe checks them.
        if bare:
            yield from judge.judge_environment(answer.node, answer.host.name, OTHER_PYTHON)
        yield from judge.judge_machine(answer.node, answer.host.name)
    if not bare and answers:
        image = read_image(answers[0].report.image or "")
        yield from judge_images(answers, image, ssh.entering)
    nodes = {answer.host.name: answer.node for answer in answers if answer.node is not None}
    if bare:
        yield from judge.judge_equal(nodes)
    yield from judge.judge_equal_gpus(nodes)


def _judge_together(
    ssh: Ssh, answers: Sequence[HostAnswer], job: JobSpec, port: int
) -> Iterator[Finding]:
    hosts = [answer.host for answer in answers]
    candidates = [wanted_addresses(a.host, a.report.interfaces) for a in answers]
    folder = shared_folder(job, str(Path.cwd()))
    with ssh.sessions(hosts) as sessions:
        opened = [sessions[host.name] for host in hosts]
        met = meet(ssh, opened, candidates, folder)
    yield from judge_ports(answers, port)
    yield from judge_ways(hosts, candidates, met)
    yield from judge_folder(hosts, met, folder)


# -- a run of the probe ---------------------------------------------------------------------------


def _judge_run(
    job: JobSpec, inventory: Inventory, run_root: Path, limit_s: float
) -> Iterator[Finding]:
    """Runs the probe on the job's hosts, and on pairs of them to find a slow host."""
    try:
        plan, answers = _run_probe(job, inventory, run_root, limit_s)
    except LauncherError as error:
        yield failed("start", f"{len(inventory.hosts)} hosts", error.what, error.hint)
        return
    yield from run.judge_start(answers, limit_s)
    if job.hosts.runtime == "docker":
        for where, facts in answers.nodes.items():
            yield from judge.judge_environment(facts, where)
        yield from judge.judge_equal(answers.nodes)
    yield run.judge_speed(answers)
    if not judge.is_slow(answers.all_reduce) or len(plan.nodes) <= 2:
        return
    hosts = [HostsSettings.of(plan).hosts[node.node_index].host for node in plan.nodes]
    job = job.model_copy(update={"nnodes": replace(job.nnodes, min=2, max=2)})

    def is_slow(pair: tuple[Host, Host]) -> bool:
        of_two = replace(inventory, hosts=pair)
        with contextlib.suppress(LauncherError):
            _, answers = _run_probe(job, of_two, run_root, min(limit_s, PAIR_LIMIT_S))
            return judge.is_slow(answers.all_reduce)
        return True

    yield from judge_neighbours([host.name for host in hosts], _try_pairs(hosts, is_slow))


def _run_probe(
    job: JobSpec, inventory: Inventory, run_root: Path, limit_s: float
) -> tuple[LaunchPlan, run.ProbeAnswers]:
    # The probe is the only file to copy, instead of the job's code.
    name = run.PROGRAM.name
    place = CodePlace(root=run.PROGRAM.parent, command=(name,))
    target, job = HostsTarget(run_root, inventory), run.as_probe(job, name)
    target.code = pack_code(place, [CodeFile(name, 0, None, False)])
    facts, code_hash = target.facts(job), target.code.hash
    run_id = new_run_id(run.RUN_NAME)
    plan = plan_run(job, facts, run_id=run_id, place=place, code_hash=code_hash)
    try:
        return plan, run.run_probe(plan, target, limit_s)
    finally:
        if job.checkpoint_dir is not None:
            folder = plan.checkpoint_dir
            assert folder.endswith(f"/{run.OWN_FOLDER}"), "as_probe has named it"
            hosts = [facts.host for facts in HostsSettings.of(plan).hosts]
            Ssh(inventory).try_each(
                lambda session: session.call(
                    remove_run, run_dir=folder, checkpoint_dir="", outputs_dir=""
                ),
                hosts,
            )


def _try_pairs(
    hosts: Sequence[Host], is_slow: Callable[[tuple[Host, Host]], bool]
) -> dict[tuple[str, str], bool]:
    """Tries each host with its two neighbours: one that is slow with both is the cause."""
    ring = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
    slow: dict[tuple[str, str], bool] = {}
    # Groups of pairs in which no host is twice, so that no pair slows another one down.
    odd = [ring.pop()] if len(ring) % 2 else []
    for pairs in filter(None, (ring[::2], ring[1::2], odd)):
        names = [(first.name, second.name) for first, second in pairs]
        with ThreadPoolExecutor(max_workers=PAIRS_AT_ONCE) as pool:
            slow.update(zip(names, pool.map(is_slow, pairs), strict=True))
    return slow


# -- what answers mean: pure ----------------------------------------------------------------------


def judge_reachable(answer: HostAnswer) -> Finding:
    """Whether the host answered; if not, ssh's own message."""
    check, name = "reachable", answer.host.name
    if answer.error is not None:
        return failed(check, name, answer.error.what.removeprefix(f"{name}: "), answer.error.hint)
    report = answer.report
    return ok(check, name, f"ssh, Python {report.python_version}, {report.cpu_count} CPU cores")


def judge_clocks(offsets_s: Mapping[str, float], backend: str) -> Iterator[Finding]:
    """Compares each host's clock with the median; this machine's clock counts in it.

    c10d stamps keep-alives with the time of day: beyond the limit the world splits.
    """
    middle = statistics.median([0.0, *offsets_s.values()])
    spread_s = max(offsets_s.values(), default=0.0) - min(offsets_s.values(), default=0.0)
    for name, offset_s in offsets_s.items():
        apart_s, fix = offset_s - middle, f"on {name}: sudo timedatectl set-ntp true"
        if spread_s <= CLOCK_LIMIT_S or abs(apart_s) <= CLOCK_LIMIT_S / 2:
            yield ok("clock", name, f"{apart_s:+.3f} s")
        elif backend == "c10d":
            what = f"{apart_s:+.1f} s, and the rendezvous c10d allows {CLOCK_LIMIT_S:g} s"
            yield failed("clock", name, what, f"{fix}, or remove engine: torchrun")
        else:
            yield warning("clock", name, f"{apart_s:+.1f} s", fix)


def judge_engine(answer: HostAnswer) -> Iterator[Finding]:
    """Whether a Docker engine answers, and can give GPUs to containers."""
    name, version = answer.host.name, answer.report.docker
    if not version:
        fix = f"on {name}: docker version; start it, or add the user to the group docker"
        yield failed("Docker", name, "no engine answers", fix)
        return
    yield ok("Docker", name, version)
    if not answer.report.gpus:
        return
    runtimes = ", ".join(answer.report.runtimes)
    if "nvidia" in runtimes:
        yield ok("NVIDIA runtime", name, runtimes)
        return
    fix = (
        "install nvidia-container-toolkit there, then: sudo nvidia-ctk runtime configure "
        "--runtime=docker && sudo systemctl restart docker"
    )
    yield failed("NVIDIA runtime", name, f"not among the engine's runtimes: {runtimes}", fix)


def judge_images(
    answers: Sequence[HostAnswer], ours: Image, entering: Callable[[Host], str]
) -> Iterator[Finding]:
    """Compares each host's image with ``ours``, which a run would send.

    ``entering`` gives the command with which a person looks into a host.
    """
    known = [answer.report.image_id for answer in answers if answer.report.image_id]
    right = ours.id or max(known, key=known.count, default="")
    for answer in answers:
        if answer.report.docker:
            yield _judge_image(answer, ours, right, entering(answer.host))


def _judge_image(answer: HostAnswer, ours: Image, right: str, enter: str) -> Finding:
    name, id = answer.host.name, answer.report.image_id
    named = f"{ours.name}: {_short(id)}"
    if id and id == right:
        return ok(IMAGE, name, named)
    what = f"{named}, others have {_short(right)}" if id else f"{ours.name} is not there"
    if ours.id:
        load = f"docker save {ours.name} | {enter} docker load"
        fix = f"{load}, or leave it to {typed.command('run')}"
        return warning(IMAGE, name, what, fix)
    return (failed if id else warning)(IMAGE, name, what, f"{enter} docker pull {ours.name}")


def _short(id: str) -> str:
    return id.removeprefix("sha256:")[:12]


def judge_leases(answers: Sequence[HostAnswer], job: JobSpec) -> Iterator[Finding]:
    """Who holds what the job needs: only a warning if the other hosts are enough."""
    held = {answer.host.name: why_held(answer.host, answer.report, job) for answer in answers}
    enough = sum(not why for why in held.values()) >= job.nnodes.min
    for answer in answers:
        name, report = answer.host.name, answer.report
        if not (why := held[name]):
            free = ",".join(free_gpus(answer.host, report))
            yield ok("leases", name, f"GPUs {free} free" if report.gpus else "free")
            continue
        runs = sorted({lease.run_id for lease in report.leases})
        fix = "lower --nproc-per-node, or correct gpus: or slots: of the host"
        if runs:
            stop = typed.command("stop", runs[0], "--hosts", name)
            fix = f"wait, or name other hosts, or if it is yours: {stop}"
        yield (warning if enough else failed)("leases", name, why, fix)


def judge_ports(answers: Sequence[HostAnswer], port: int) -> Iterator[Finding]:
    """Whether the rendezvous port is free on every host: any of them may serve it."""
    taken = [answer.host.name for answer in answers if port not in answer.report.free_ports]
    for name in taken:
        fix = f"on {name}: ss -ltnp sport = :{port} shows by whom; or --set rdzv.port=N"
        yield failed("port", name, f"{port}, of the rendezvous, is taken", fix)
    if not taken:
        yield ok("port", "all hosts", f"{port} is free")


def judge_ways(
    hosts: Sequence[Host], candidates: Sequence[Sequence[Address]], met: Reachability
) -> Iterator[Finding]:
    """Whether all others can call each host; then the addresses that a run would use."""
    # If a run could choose addresses, only those count.
    chosen: list[Address] = []
    why: TargetError | None = None
    try:
        chosen = decide_addresses(hosts, candidates, met.reached)
    except TargetError as error:
        why = error
    used = [[address] for address in chosen] or candidates
    is_open = True
    for to, host in enumerate(hosts):
        ways = {o: [(o, to, a.address) for a in used[to]] for o in range(len(hosts)) if o != to}
        lost = [o for o, tried in ways.items() if not any(way in met.reached for way in tried)]
        if lost:
            is_open = False
            callers = ",".join(a.address for other in lost for a in used[other][:1])
            ports = "1024:65535"
            line = f"iptables -I INPUT -s {callers} -p tcp --dport {ports} -j ACCEPT"
            sources = ", ".join(hosts[other].name for other in lost)
            what = f"{host.name} cannot be reached at an ephemeral port"
            fix = f"on {host.name}, and between: {line}"
            yield failed("pair", f"{sources} -> {host.name}", what, fix)
    if not is_open:
        return
    yield ok("pairs", "all hosts", f"{len(hosts) * (len(hosts) - 1)} ways")
    if why is not None:
        yield failed("interface", "all hosts", why.what, why.hint)
    for host, address in zip(hosts, chosen, strict=False):
        speed = f", {address.speed} Mbit/s" if address.speed else ""
        yield ok("interface", host.name, f"{address.address} by {address.interface}{speed}")


def judge_folder(hosts: Sequence[Host], met: Reachability, folder: str | None) -> Iterator[Finding]:
    """Whether all hosts see one checkpoint folder; ``folder`` is None if each has its own."""
    check = "shared checkpoints"
    if folder is None:
        what = "checkpoint_dir is not set: each host has a folder of its own"
        yield warning(check, "job", what, "set checkpoint_dir to a folder that all hosts mount")
        return
    for place, error in met.unwritten.items():
        name = hosts[place].name
        what = f"{folder} cannot be written: {error.what.removeprefix(f'{name}: ')}"
        yield failed(
            check, name, what, "mount it there, or chown it for the user that you log in as"
        )
    alone = [place for place in decide_unshared(met.sees) if place not in met.unwritten]
    for name in (hosts[place].name for place in alone):
        fix = f"on {name}: mount what the others have there: df {folder}"
        yield failed(check, name, f"{folder} there is not the folder of the others", fix)
    if not alone and not met.unwritten:
        yield ok(check, "all hosts", f"{folder} is one folder")


def judge_neighbours(names: Sequence[str], slow: Mapping[tuple[str, str], bool]) -> list[Finding]:
    """Which host makes an all-reduce slow, or hang; ``slow``: is a pair of neighbours slow?"""
    of = {name: [is_slow for pair, is_slow in slow.items() if name in pair] for name in names}
    bad = [name for name in names if of[name] and all(of[name])]
    check = "all-reduce of two"
    if len(bad) in (0, len(names)):
        pairs = ", ".join(" - ".join(pair) for pair, is_slow in slow.items() if is_slow)
        what = f"slow or hanging: {pairs}" if pairs else "every pair is fast by itself"
        return [warning(check, "all hosts", what, "look at what all of them share: the switch")]
    fix = "look at its cable, port and MTU: ip -s link; or leave it out: --exclude {name}"
    what = "slow or hanging with each of its neighbours; others are not"
    return [failed(check, name, what, fix.format(name=name)) for name in bad]
