"""What ``doctor`` says of hosts, with fixes: clocks, Docker, images, leases, ports, ways between
hosts, shared folder. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.contract import typed
from launcher.contract.errors import TargetError
from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.doctor.judge import NodeAnswer
from launcher.job.spec import JobSpec
from launcher.targets.hosts.nodes import Image
from launcher.targets.hosts.plan import CLOCK_LIMIT_S, decide_addresses, decide_unshared
from launcher.targets.hosts.program.messages import Address, HostReport
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.survey import Reachability, free_gpus, why_held

IMAGE = "image"


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """One host's answer; ``error`` says why there is none.

    ``found`` is what a start needs to know, ``node`` what the probe reports of the host's Python
    and machine, ``node_error`` why the probe reports nothing.
    """

    host: Host
    error: TargetError | None = None
    found: HostReport = field(default_factory=HostReport)
    node: NodeAnswer | None = None
    node_error: str = ""


def judge_reachable(answer: HostAnswer) -> Finding:
    """Whether the host answered; if not, ssh's own message."""
    check, name = "reachable", answer.host.name
    if answer.error is not None:
        return failed(check, name, answer.error.what.removeprefix(f"{name}: "), answer.error.hint)
    found = answer.found
    return ok(check, name, f"ssh, Python {found.python_version}, {found.cpu_count} CPU cores")


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
            found = f"{apart_s:+.1f} s, and the rendezvous c10d allows {CLOCK_LIMIT_S:g} s"
            yield failed("clock", name, found, f"{fix}, or remove engine: torchrun")
        else:
            yield warning("clock", name, f"{apart_s:+.1f} s", fix)


def judge_engine(answer: HostAnswer) -> Iterator[Finding]:
    """Whether a Docker engine answers, and can give GPUs to containers."""
    name, version = answer.host.name, answer.found.docker
    if not version:
        fix = f"on {name}: docker version; start it, or add the user to the group docker"
        yield failed("Docker", name, "no engine answers", fix)
        return
    yield ok("Docker", name, version)
    if not answer.found.gpus:
        return
    runtimes = ", ".join(answer.found.runtimes)
    if "nvidia" in runtimes:
        yield ok("NVIDIA runtime", name, runtimes)
        return
    fix = (
        "install nvidia-container-toolkit there, then: sudo nvidia-ctk runtime configure "
        "--runtime=docker && sudo systemctl restart docker"
    )
    yield failed("NVIDIA runtime", name, f"not among the engine's runtimes: {runtimes}", fix)


def judge_images(
    answers: Sequence[HostAnswer], own: Image, entering: Callable[[Host], str]
) -> Iterator[Finding]:
    """Compares each host's image with ``own``, which a run would send.

    ``entering`` gives the command with which a person looks into a host.
    """
    known = [answer.found.image_id for answer in answers if answer.found.image_id]
    right = own.id or max(known, key=known.count, default="")
    for answer in answers:
        if answer.found.docker:
            yield _judge_image(answer, own, right, entering(answer.host))


def _judge_image(answer: HostAnswer, own: Image, right: str, enter: str) -> Finding:
    name, id = answer.host.name, answer.found.image_id
    told = f"{own.name}: {_short(id)}"
    if id and id == right:
        return ok(IMAGE, name, told)
    found = f"{told}, others have {_short(right)}" if id else f"{own.name} is not there"
    if own.id:
        load = f"docker save {own.name} | {enter} docker load"
        fix = f"{load}, or leave it to {typed.command('run')}"
        return warning(IMAGE, name, found, fix)
    return (failed if id else warning)(IMAGE, name, found, f"{enter} docker pull {own.name}")


def _short(id: str) -> str:
    return id.removeprefix("sha256:")[:12]


def judge_leases(answers: Sequence[HostAnswer], job: JobSpec) -> Iterator[Finding]:
    """Who holds what the job needs: only a warning if the other hosts are enough."""
    held = {answer.host.name: why_held(answer.host, answer.found, job) for answer in answers}
    enough = sum(not why for why in held.values()) >= job.nnodes.min
    for answer in answers:
        name, found = answer.host.name, answer.found
        if not (why := held[name]):
            free = ",".join(free_gpus(answer.host, found))
            yield ok("leases", name, f"GPUs {free} free" if found.gpus else "free")
            continue
        runs = sorted({lease.run_id for lease in found.leases})
        fix = "lower --nproc-per-node, or correct gpus: or slots: of the host"
        if runs:
            stop = typed.command("stop", runs[0], "--hosts", name)
            fix = f"wait, or name other hosts, or if it is yours: {stop}"
        yield (warning if enough else failed)("leases", name, why, fix)


def judge_ports(answers: Sequence[HostAnswer], port: int) -> Iterator[Finding]:
    """Whether the rendezvous port is free on every host: any of them may serve it."""
    taken = [answer.host.name for answer in answers if port not in answer.found.free_ports]
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
            found = f"{host.name} cannot be reached at an ephemeral port"
            fix = f"on {host.name}, and between: {line}"
            yield failed("pair", f"{sources} -> {host.name}", found, fix)
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
        found = "checkpoint_dir is not set: each host has a folder of its own"
        yield warning(check, "job", found, "set checkpoint_dir to a folder that all hosts mount")
        return
    for place, error in met.unwritten.items():
        name = hosts[place].name
        found = f"{folder} cannot be written: {error.what.removeprefix(f'{name}: ')}"
        yield failed(
            check, name, found, "mount it there, or chown it for the user that you log in as"
        )
    alone = [place for place in decide_unshared(met.seen) if place not in met.unwritten]
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
        found = f"slow or hanging: {pairs}" if pairs else "every pair is fast by itself"
        return [warning(check, "all hosts", found, "look at what all of them share: the switch")]
    fix = "look at its cable, port and MTU: ip -s link; or leave it out: --exclude {name}"
    found = "slow or hanging with each of its neighbours; others are not"
    return [failed(check, name, found, fix.format(name=name)) for name in bad]
