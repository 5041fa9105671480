"""Finds out what the hosts of an inventory have, who holds them, and which reach each other."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract.errors import TargetError
from launcher.plan.rendezvous import plan_backend
from launcher.plan.target_facts import TargetFacts
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.plan import (
    Address,
    check_clocks,
    check_shared,
    check_versions,
    decide_addresses,
    decide_hosts,
    is_wanted,
    shared_folder,
)
from launcher.targets.hosts.program.messages import HostReport, ReadClock, ReadHost
from launcher.targets.hosts.reach import Gathering
from launcher.targets.hosts.settings import Host, HostFacts
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.repository import OWN_IMAGE

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

PORTS = range(20000, 32000)
"""Below the range from which kernels take ports for outgoing connections."""
PROPOSED_PORTS = 16
SHOWN_HOSTS = 8
CLOCK_LOOKS = 3


class Survey:
    """One look at the hosts that a job may run on."""

    def __init__(self, ssh: Ssh, inventory: Inventory, job: JobSpec) -> None:
        self._ssh, self._inventory, self._job = ssh, inventory, job
        self.port: int | None = None
        """A TCP port that is free on all chosen hosts."""

    def read(self) -> tuple[HostFacts, ...]:
        """The hosts of the nodes, in their order. Raises ``TargetError``."""
        with self._ssh.sessions(self._inventory.hosts, keep=True) as sessions:
            return self._read([sessions[host.name] for host in self._inventory.hosts])

    def _read(self, sessions: list[Session]) -> tuple[HostFacts, ...]:
        proposed = random.SystemRandom().sample(PORTS, PROPOSED_PORTS)
        found = self._ssh.each(lambda each: read_host(each, self._job, proposed), sessions)
        told = dict(zip(self._inventory.hosts, found, strict=True))
        reasons = {host.name: why_not(host, found, self._job) for host, found in told.items()}
        busy = {name: why for name, why in reasons.items() if why}
        all_facts = [to_facts(host, found, self._job) for host, found in told.items()]
        chosen = decide_hosts(all_facts, busy, self._job)
        check_clocks(chosen, plan_backend(self._job))
        check_versions(chosen)
        free = [told[facts.host].free_ports for facts in chosen]
        common = [port for port in proposed if all(port in ports for ports in free)]
        if not common and self._job.rdzv.port is None:
            raise TargetError(
                f"none of {PROPOSED_PORTS} tried ports is free on all hosts",
                "--set rdzv.port=N with a port that is",
            )
        self.port = common[0] if common else None
        of_host = dict(zip(self._inventory.hosts, sessions, strict=True))
        return self._with_addresses(chosen, told, of_host)

    def _with_addresses(
        self,
        chosen: tuple[HostFacts, ...],
        told: dict[Host, HostReport],
        sessions: dict[Host, Session],
    ) -> tuple[HostFacts, ...]:
        if len(chosen) == 1:
            return chosen
        hosts = [facts.host for facts in chosen]
        candidates = [[a for a in candidates_of(told[h]) if is_wanted(h, a)] for h in hosts]
        folder = shared_folder(self._job, str(Path.cwd()))
        folders = [folder] * len(hosts) if folder else []
        opened = [sessions[host] for host in hosts]
        gathering = Gathering(self._ssh, opened, candidates, folders=folders)
        met = gathering.meet(keep_folders=True)
        found = decide_addresses(hosts, candidates, {call[:3] for call in met.reached})
        for error in (*met.closed.values(), *met.unwritten.values()):
            raise error
        if folder:
            check_shared([host.name for host in hosts], met.seen, folder)
        return tuple(
            replace(facts, address=a.address, interface=a.interface)
            for facts, a in zip(chosen, found, strict=True)
        )


def read_host(session: Session, job: JobSpec, ports: list[int]) -> HostReport:
    """What one host has, and which of ``ports`` are free there."""
    host = session.host
    offset_s = read_clock_offset_s(session)
    asked = ReadHost(
        state_dir=host.state_dir,
        lease_dir=host.lease_dir,
        python=host.python or job.hosts.python,
        ports=ports,
        gpus=job.resources.gpus != 0,
        runtime=job.hosts.runtime,
        image=job.image or "",
        own_image=OWN_IMAGE,
    )
    return session.call(asked).having(clock_offset_s=offset_s)


def read_clock_offset_s(session: Session) -> float:
    """The host's clock minus this machine's, to half of the shortest round trip."""
    found = []
    for _ in range(CLOCK_LOOKS):
        asked_at, started = time.time(), time.monotonic()
        there = session.call(ReadClock()).at
        took_s = time.monotonic() - started
        found.append((took_s, there - (asked_at + took_s / 2)))
    return float(min(found)[1])


def candidates_of(found: HostReport) -> list[Address]:
    """All addresses at which others might reach a host."""
    return [Address(interface=i, address=a, speed=s) for i, a, s in found.interfaces]


def why_not(host: Host, found: HostReport, job: JobSpec) -> str:
    """Why a host cannot take a node now; empty where it can."""
    if job.hosts.runtime == "python":
        if not found.python:
            return f"has no {host.python or job.hosts.python or 'python3'}: set python: for it"
        if not found.torch_version:
            return f"{found.python} has no torch: set python: for it, or runtime: docker"
    elif not found.docker:
        return "has no Docker engine that answers: docker version there says why"
    return (why_no_rdma(found, job) if job.resources.rdma else "") or why_held(host, found, job)


def why_no_rdma(found: HostReport, job: JobSpec) -> str:
    """Why a host cannot use RDMA, with the fix; empty where it can."""
    devices, memlock_bytes = found.rdma_devices, found.memlock_bytes
    if not devices:
        return (
            "has no RDMA device (/dev/infiniband/uverbs*), and resources.rdma is set: modprobe "
            "ib_uverbs there, or --set resources.rdma=false"
        )
    if job.hosts.runtime == "docker":
        # The engine gives containers the devices, and lifts the limit.
        return ""
    if not any(devices.values()):
        paths = ", ".join(devices)
        return f"its user may not open {paths}: chmod 666 {' '.join(devices)} there, as udev does"
    if memlock_bytes is not None:
        return (
            f"an ssh session may lock {memlock_bytes >> 10} KiB of memory, and RDMA locks much: "
            "put '* - memlock unlimited' into /etc/security/limits.d/rdma.conf there, and try a "
            "minute later, when the connection has ended"
        )
    return ""


def why_held(host: Host, found: HostReport, job: JobSpec) -> str:
    """Which runs hold what the job needs of a host; empty where none does."""
    live = [lease for lease in found.leases if lease.live]
    holders = ", ".join(sorted({f"{le.owner} with {le.run_id}" for le in live}))
    if found.gpus and not free_gpus(host, found):
        return f"all its GPUs are held by {holders}"
    taken = sum(lease.slots for lease in live)
    wanted = job.nproc_per_node if isinstance(job.nproc_per_node, int) else host.slots or 1
    if not found.gpus and host.slots is not None and taken + wanted > host.slots:
        return f"{taken} of its {host.slots} slots are held by {holders or 'nobody'}"
    return ""


def free_gpus(host: Host, found: HostReport) -> tuple[str, ...]:
    """The GPUs that the inventory allows and no lease holds."""
    held = {gpu for lease in found.leases if lease.live for gpu in lease.gpus}
    allowed = found.gpus if host.gpus is None else host.gpus
    return tuple(id for id in found.gpus if id in allowed and id not in held)


def to_facts(host: Host, found: HostReport, job: JobSpec) -> HostFacts:
    """The host as the planner sees it, before its address is known."""
    return HostFacts(
        host=host,
        address="127.0.0.1",
        interface="lo",
        cpu_count=found.cpu_count,
        device_ids=free_gpus(host, found),
        # A container has the image's own Python.
        python=found.python if job.hosts.runtime == "python" else "python3",
        torch_version=found.torch_version or None,
        state_dir=found.state_dir,
        runtime=job.hosts.runtime,
        user=found.user,
        image=found.image,
        image_labels=found.labels,
        clock_offset_s=round(found.clock_offset_s, 3),
    )


def describe_hosts(facts: TargetFacts) -> str:
    """The machines, and what was looked at before they were taken. Pure."""
    names = [node.machine.name for node in facts.nodes if node.machine]
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    bare = facts.image is None
    checked = "ssh, torch, ports, leases, clocks" if bare else "ssh, Docker, ports, leases"
    pairs = f", {len(names) * (len(names) - 1)} ways between them" if len(names) > 1 else ""
    shared = ", one checkpoint folder" if len(names) > 1 and facts.shares_storage else ""
    return f"hosts {', '.join(names[:SHOWN_HOSTS])}{more} (checked: {checked}{pairs}{shared})"
