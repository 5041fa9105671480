"""Finds out what hosts have, who holds them, and which reach each other; says why one cannot take a
node, such as no torch."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract.errors import TargetError
from launcher.plan.rendezvous import plan_backend
from launcher.targets.agent_files import OWN_IMAGE
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.plan import (
    check_clocks,
    check_shared,
    check_versions,
    decide_addresses,
    decide_hosts,
    shared_folder,
    wanted_addresses,
)
from launcher.targets.hosts.program import facts, reach
from launcher.targets.hosts.program.messages import Address, HostReport
from launcher.targets.hosts.program.session import leave_token, read_clock
from launcher.targets.hosts.settings import Host, HostFacts
from launcher.targets.hosts.ssh.client import Ssh, joined
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.machine import PORTS

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

PROPOSED_PORTS = 16
"""So many ports are tried on all hosts for the rendezvous."""
CLOCK_LOOKS = 3
"""How often a host's clock is read: the quickest answer counts."""
REACH_LIMIT_S = 3.0
"""For one call: a kernel sends a lost first packet again after 1 s (RFC 6298)."""
TOKEN_LIMIT_S = 5.0


def survey_hosts(
    ssh: Ssh, inventory: Inventory, job: JobSpec
) -> tuple[tuple[HostFacts, ...], int | None, list[str]]:
    """The hosts of the job's nodes, in their order, and a TCP port that is free on all of them.

    Also a note for each host that is not reached. Raises ``TargetError`` if the job cannot run on
    the others.
    """
    away: dict[str, TargetError] = {}
    with ssh.sessions(inventory.hosts, away=away) as opened:
        there = [host for host in inventory.hosts if host.name in opened]
        proposed = random.SystemRandom().sample(PORTS, PROPOSED_PORTS)
        read = ssh.each(lambda host: read_host(opened[host.name], job, proposed), there)
        reports = dict(zip(there, read, strict=True))
        reasons = {host.name: why_not(host, report, job) for host, report in reports.items()}
        busy = {name: why for name, why in reasons.items() if why}
        busy |= find_twins({host.name: reports[host] for host in reports if host.name not in busy})
        usable = len(there) - len(busy)
        if usable < job.nnodes.min <= usable + len(away):
            raise joined(list(away.values()))
        busy |= {name: away[name].what.removeprefix(f"{name}: ") for name in sorted(away)}
        chosen = decide_hosts([to_facts(host, reports[host], job) for host in reports], busy, job)
        check_clocks(chosen, plan_backend(job))
        if job.hosts.runtime == "python":
            check_versions(chosen)
        ports = [reports[facts.host].free_ports for facts in chosen]
        common = [port for port in proposed if all(port in free for free in ports)]
        if not common and job.rdzv.port is None:
            raise TargetError(
                f"none of {PROPOSED_PORTS} tried ports is free on all hosts",
                "--set rdzv.port=N with a port that is free on all hosts",
            )
        if len(chosen) > 1:
            sessions, shared = [opened[f.name] for f in chosen], shared_folder(job, str(Path.cwd()))
            chosen = _with_addresses(ssh, sessions, chosen, reports, shared)
        notes = [f"{error.what}; the run begins without it" for error in away.values()]
        return chosen, common[0] if common else None, notes


def _with_addresses(
    ssh: Ssh,
    sessions: list[Session],
    chosen: tuple[HostFacts, ...],
    reports: dict[Host, HostReport],
    folder: str | None,
) -> tuple[HostFacts, ...]:
    hosts = [facts.host for facts in chosen]
    candidates = [wanted_addresses(host, reports[host].interfaces) for host in hosts]
    met = meet(ssh, sessions, candidates, folder, called=(0,))
    addresses = decide_addresses(hosts, candidates, met.reached)
    _check_met(hosts, met, folder)
    return tuple(
        replace(facts, address=a.address, interface=a.interface)
        for facts, a in zip(chosen, addresses, strict=True)
    )


def check_folder(ssh: Ssh, known: Sequence[HostFacts], folder: str) -> None:
    """Raises ``TargetError`` if the hosts do not share a folder."""
    hosts = [facts.host for facts in known]
    with ssh.sessions(hosts) as opened:
        sessions = [opened[host.name] for host in hosts]
        _check_met(hosts, meet(ssh, sessions, [()] * len(hosts), folder, called=()), folder)


def _check_met(hosts: Sequence[Host], met: Reachability, folder: str | None) -> None:
    for error in met.unwritten.values():
        raise error
    if folder:
        check_shared([host.name for host in hosts], met.sees, folder)


def read_host(session: Session, job: JobSpec, ports: list[int]) -> HostReport:
    """What one host has, and which of ``ports`` are free there."""
    host, looks = session.host, []
    for _ in range(CLOCK_LOOKS):
        asked_at, started = time.time(), time.monotonic()
        there = session.call(read_clock)
        took_s = time.monotonic() - started
        looks.append((took_s, there - (asked_at + took_s / 2)))
    report = session.call(
        facts.read_host,
        state_dir=host.state_dir,
        lease_dir=host.lease_dir,
        python=host.python or job.hosts.python,
        ports=ports,
        gpus=not job.is_on_cpu,
        runtime=job.hosts.runtime,
        image=job.image or "",
        own_image=OWN_IMAGE,
    )
    # The offset is exact to half of the shortest round trip.
    return report.having(clock_offset_s=min(looks)[1])


def find_twins(reports: Mapping[str, HostReport]) -> dict[str, str]:
    """The names that lead to the machine of an earlier name, and why they are no host. Pure."""
    first: dict[tuple[str, frozenset[str]], str] = {}
    twins = {}
    for name, report in reports.items():
        # With the addresses: machines that are copies of one disk may call themselves alike.
        identity = report.machine, frozenset(address.address for address in report.interfaces)
        if report.machine and (other := first.setdefault(identity, name)) != name:
            twins[name] = f"is the machine of {other} too"
    return twins


def why_not(host: Host, report: HostReport, job: JobSpec) -> str:
    """Why a host cannot take a node now; empty if it can."""
    if job.hosts.runtime == "python":
        if not report.python:
            return f"has no {host.python or job.hosts.python or 'python3'}: set python: for it"
        if not report.torch_version:
            return f"{report.python} has no torch: name one that has, --set hosts.python=PATH"
    elif not report.docker:
        return "no Docker engine answers: docker version there; or --set hosts.runtime=python"
    if job.resources.rdma and not report.has_rdma:
        return (
            "has no RDMA device (/dev/infiniband/uverbs*), and resources.rdma is set: modprobe "
            "ib_uverbs there, or --set resources.rdma=false"
        )
    return why_held(host, report, job)


def why_held(host: Host, report: HostReport, job: JobSpec) -> str:
    """Why a host lacks GPUs or slots that the job needs, and who holds them; empty if it has."""
    nproc = job.nproc_per_node if isinstance(job.nproc_per_node, int) else None
    if report.gpus:
        kind, total, free = "GPUs", len(allowed_gpus(host, report)), len(free_gpus(host, report))
        wanted = nproc or job.resources.gpus or 1
    elif host.slots is not None:
        taken = sum(lease.slots for lease in report.leases)
        kind, total, free = "slots", host.slots, host.slots - taken
        wanted = nproc or host.slots
    else:
        return ""
    if wanted > total:
        allowed = " that gpus: of the inventory allows" if host.gpus else ""
        return f"has {total} {kind}{allowed}, and the job wants {wanted} of each node"
    if wanted <= free:
        return ""
    holders = ", ".join(sorted({f"{lease.owner} with {lease.run_id}" for lease in report.leases}))
    return f"{total - free} of its {total} {kind} are held by {holders}; the job wants {wanted}"


def allowed_gpus(host: Host, report: HostReport) -> tuple[str, ...]:
    """The GPUs that the inventory allows."""
    return tuple(id for id in report.gpus if host.gpus is None or id in host.gpus)


def free_gpus(host: Host, report: HostReport) -> tuple[str, ...]:
    """The GPUs that the inventory allows and no lease holds."""
    held = {gpu for lease in report.leases for gpu in lease.gpus}
    return tuple(id for id in allowed_gpus(host, report) if id not in held)


def to_facts(host: Host, report: HostReport, job: JobSpec) -> HostFacts:
    """The host as the planner sees it, before its address is known."""
    return HostFacts(
        host=host,
        address="127.0.0.1",
        interface="lo",
        cpu_count=report.cpu_count,
        slots=host.slots,
        device_ids=free_gpus(host, report),
        # A container has the image's own Python.
        python=report.python if job.hosts.runtime == "python" else "python3",
        torch_version=report.torch_version or None,
        state_dir=report.state_dir,
        runtime=job.hosts.runtime,
        user=report.user,
        image=report.image,
        machine=report.machine,
        clock_offset_s=round(report.clock_offset_s, 3),
    )


# -- which hosts reach each other ------------------------------------------------------------------

Way = tuple[int, int, str]
"""From, to, address; hosts by their place in the ``sessions`` of ``meet``."""


@dataclass(frozen=True, kw_only=True)
class Reachability:
    """The result of ``meet``; hosts by their place in its ``sessions``.

    ``reached`` holds each way that was open, and the caller's own address on it. ``sees`` holds,
    for each host, the hosts whose files it saw in the folder. ``unwritten`` are the hosts that
    could not write to the folder, each with its error.
    """

    reached: Mapping[Way, str]
    sees: tuple[frozenset[int], ...]
    unwritten: dict[int, TargetError]


def meet(
    ssh: Ssh,
    sessions: Sequence[Session],
    candidates: Sequence[Sequence[Address]],
    folder: str | None,
    *,
    called: Sequence[int] | None = None,
) -> Reachability:
    """Has each host call the ``called`` hosts, or all others; blocks for seconds.

    A host is called at all its addresses, on a port that its kernel chooses. ``folder`` is the one
    that all hosts should share, if any. Ports and files last as long as the ``sessions``, which
    the caller closes. Raises ``TargetError`` if a host is gone.
    """
    secret = secrets.token_hex(8)
    # A token for each host: two hosts may have the same address, of a bridge or a tunnel.
    tokens = [f"{secret}-{place}" for place in range(len(sessions))]
    # First calls, then files: a host that looks for files does not greet callers.
    wanted = range(len(sessions)) if called is None else called
    reached = _call(ssh, sessions, candidates, tokens, wanted)
    sees, unwritten = _share(ssh, sessions, tokens, folder) if folder else ([], {})
    return Reachability(reached=reached, sees=tuple(sees), unwritten=unwritten)


def _call(
    ssh: Ssh,
    sessions: Sequence[Session],
    candidates: Sequence[Sequence[Address]],
    tokens: Sequence[str],
    wanted: Sequence[int],
) -> dict[Way, str]:
    def listen(place: int) -> int:
        return sessions[place].call(reach.listen, token=tokens[place])

    opened = dict(zip(wanted, ssh.each(listen, wanted), strict=True))

    def call(place: int) -> dict[Way, str]:
        ways = [(to, a.address) for to in wanted if to != place for a in candidates[to]]
        calls = [(address, opened[to], tokens[to]) for to, address in ways]
        answered = sessions[place].call(reach.call_hosts, calls=calls, wait_s=REACH_LIMIT_S)
        return {(place, *ways[int(i)]): caller for i, caller in answered.items()}

    open_ways = ssh.each(call, range(len(sessions)))
    return {way: caller for ways in open_ways for way, caller in ways.items()}


def _share(
    ssh: Ssh, sessions: Sequence[Session], tokens: Sequence[str], folder: str
) -> tuple[list[frozenset[int]], dict[int, TargetError]]:
    places, unwritten = range(len(sessions)), {}
    names = [f".launcher-token-{token}" for token in tokens]

    def leave(place: int) -> None:
        try:
            sessions[place].call(leave_token, folder=folder, name=names[place])
        except TargetError as error:
            unwritten[place] = error

    ssh.each(leave, places)
    wanted = [names[place] for place in places if place not in unwritten]

    def find_tokens(session: Session) -> list[str]:
        return session.call(reach.find_tokens, folder=folder, names=wanted, wait_s=TOKEN_LIMIT_S)

    left_there = ssh.each(find_tokens, sessions)
    return [frozenset(map(names.index, left)) for left in left_there], unwritten
