"""Finds out what the hosts of an inventory are, who holds them, and how they reach each other."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from dataclasses import replace
from typing import Any

from launcher.errors import TargetError
from launcher.hosts import Host, HostFacts
from launcher.hosts_plan import Address, check_clocks, decide_addresses, decide_hosts
from launcher.inventory import Inventory
from launcher.job import JobSpec
from launcher.rendezvous import plan_backend
from launcher.targets.ssh import Session, Ssh

PORTS = range(20000, 32000)
"""Below the range from which kernels hand out ports to outgoing connections."""
OWN_IMAGE = "fabric-train"
PROPOSED_PORTS = 16
REACH_LIMIT_S = 5.0
CLOCK_READINGS = 3


class Survey:
    """One look at the hosts that a job may run on."""

    def __init__(self, ssh: Ssh, inventory: Inventory, job: JobSpec) -> None:
        self._ssh, self._inventory, self._job = ssh, inventory, job
        self.port: int | None = None
        """A TCP port that is free on all chosen hosts."""

    def read(self) -> tuple[HostFacts, ...]:
        """The hosts of the nodes, in their order. Raises ``TargetError``."""
        proposed = random.SystemRandom().sample(PORTS, PROPOSED_PORTS)
        told = self._ssh.each(lambda host: self._read_one(host, proposed), self._inventory.hosts)
        busy = {
            host.name: why
            for host, found in zip(self._inventory.hosts, told, strict=True)
            if (why := why_not(host, found, self._job))
        }
        all_facts = [
            to_facts(host, found, self._job)
            for host, found in zip(self._inventory.hosts, told, strict=True)
        ]
        chosen = decide_hosts(all_facts, busy, self._job)
        check_clocks(chosen, plan_backend(self._job))
        by_name = dict(zip((h.name for h in self._inventory.hosts), told, strict=True))
        free = [set(by_name[facts.host.name]["free_ports"]) for facts in chosen]
        common = [port for port in proposed if all(port in ports for ports in free)]
        if not common and self._job.rdzv.port is None:
            raise TargetError(
                f"none of {PROPOSED_PORTS} tried ports is free on all hosts",
                "--set rdzv.port=N with a port that is",
            )
        self.port = common[0] if common else None
        return self._with_addresses(chosen, by_name)

    def _read_one(self, host: Host, ports: list[int]) -> dict[str, Any]:
        job = self._job
        with self._ssh.open(host) as session:
            found = session.call(
                "facts",
                state_dir=host.state_dir,
                lease_dir=host.lease_dir,
                python=host.python or job.hosts.python,
                ports=ports,
                gpus=job.resources.gpus != 0,
                runtime=job.hosts.runtime,
                image=job.image or "",
                own_image=OWN_IMAGE,
            )
            found["clock_offset_s"] = read_clock_offset_s(session)
            return found

    def _with_addresses(
        self, chosen: tuple[HostFacts, ...], told: dict[str, dict[str, Any]]
    ) -> tuple[HostFacts, ...]:
        if len(chosen) == 1:
            return chosen
        hosts = [facts.host for facts in chosen]
        candidates = [
            [Address(interface=i, address=a, speed=s) for i, a, s in told[h.name]["interfaces"]]
            for h in hosts
        ]
        reached = self._try_all(hosts, candidates)
        found = decide_addresses(hosts, candidates, reached)
        return tuple(
            replace(facts, address=a.address, interface=a.interface)
            for facts, a in zip(chosen, found, strict=True)
        )

    def _try_all(
        self, hosts: list[Host], candidates: list[list[Address]]
    ) -> set[tuple[int, int, str]]:
        """Every ordered pair of hosts at every address, all at once."""
        with contextlib.ExitStack() as stack:
            listening = self._ssh.each(self._listen, hosts)
            for session, _, _ in listening:
                stack.callback(session.close)

            def call(place: int) -> list[tuple[int, int, str]]:
                calls = [
                    (to, a.address, listening[to][1], listening[to][2])
                    for to in range(len(hosts))
                    if to != place
                    for a in candidates[to]
                ]
                with self._ssh.open(hosts[place]) as session:
                    answer = session.call(
                        "reach", calls=[c[1:] for c in calls], wait_s=REACH_LIMIT_S
                    )
                return [(place, calls[i][0], calls[i][1]) for i in answer["reached"]]

            return {found for row in self._ssh.each(call, range(len(hosts))) for found in row}

    def _listen(self, host: Host) -> tuple[Session, int, str]:
        session, token = self._ssh.open(host), secrets.token_hex(8)
        return session, session.call("listen", token=token)["port"], token


def read_clock_offset_s(session: Session) -> float:
    """The host's wall clock less this machine's: at half of the shortest of some round trips."""
    found = []
    for _ in range(CLOCK_READINGS):
        asked_at, began = time.time(), time.monotonic()
        there_at = session.call("clock")["at"]
        round_trip_s = time.monotonic() - began
        found.append((round_trip_s, there_at - (asked_at + round_trip_s / 2)))
    return float(min(found)[1])


def why_not(host: Host, found: dict[str, Any], job: JobSpec) -> str:
    """Why a host cannot take a node now; empty where it can."""
    if job.hosts.runtime == "python":
        if not found["python"]:
            return f"has no {host.python or job.hosts.python or 'python3'}: set python: for it"
        if not found["torch_version"]:
            return f"{found['python']} has no torch: set python: for it, or runtime: docker"
    elif not found["docker"]:
        return "has no Docker engine that answers: docker version there says why"
    live = [lease for lease in found["leases"] if lease["live"]]
    if found["gpus"] and not free_gpus(host, found):
        return f"all its GPUs are held by {', '.join(sorted({le['run_id'] for le in live}))}"
    taken = sum(lease["slots"] for lease in live)
    wanted = job.nproc_per_node if isinstance(job.nproc_per_node, int) else host.slots or 1
    if not found["gpus"] and host.slots is not None and taken + wanted > host.slots:
        holders = ", ".join(sorted({f"{le['owner']} with {le['run_id']}" for le in live}))
        return f"{taken} of its {host.slots} slots are held by {holders or 'nobody'}"
    return ""


def free_gpus(host: Host, found: dict[str, Any]) -> tuple[str, ...]:
    """Ids that the inventory allows and nobody holds."""
    held = {gpu for lease in found["leases"] if lease["live"] for gpu in lease["gpus"]}
    allowed = found["gpus"] if host.gpus is None else host.gpus
    return tuple(id for id in found["gpus"] if id in allowed and id not in held)


def to_facts(host: Host, found: dict[str, Any], job: JobSpec) -> HostFacts:
    """The host as the planner sees it, before its address is known."""
    return HostFacts(
        host=host,
        address="127.0.0.1",
        interface="lo",
        cpu_count=found["cpu_count"],
        device_ids=free_gpus(host, found),
        # In a container the image's own is what counts.
        python=found["python"] if job.hosts.runtime == "python" else "python3",
        torch_version=found.get("torch_version") or None,
        state_dir=found["state_dir"],
        runtime=job.hosts.runtime,
        user=found["user"],
        image=found.get("image"),
        image_labels=found.get("labels", ""),
        clock_offset_s=round(found["clock_offset_s"], 3),
    )
