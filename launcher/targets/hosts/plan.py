"""Plans a run on hosts: which of them, by which addresses. Refuses clocks too far apart, different
torch, a folder not shared. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.errors import TargetError
from launcher.plan.target_facts import RUN_ID, Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.targets.hosts.program.messages import CHECKPOINTS_DIR, RUNS_DIR, Address
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings

if TYPE_CHECKING:
    from launcher.code.record import CodeRecord
    from launcher.job.spec import JobSpec

TARGET = "hosts"
CLOCK_LIMIT_S = 5.0
SHOWN_HOSTS = 8


def decide_addresses(
    hosts: Sequence[Host],
    candidates: Sequence[Sequence[Address]],
    reached: Mapping[tuple[int, int, str], str],
) -> list[Address]:
    """An address of each host: the first host's fastest one that all others reach, and for each
    other host the one that it reached the first from, unless the inventory names another.

    ``reached`` maps (from, to, address), with hosts by place, to the caller's own address. Raises
    ``TargetError`` naming the hosts that do not reach the first.
    """
    wanted = [wanted_addresses(host, candidates[place]) for place, host in enumerate(hosts)]
    others = range(1, len(hosts))
    good = [a for a in wanted[0] if all((o, 0, a.address) in reached for o in others)]
    if not good:
        raise _unreached(hosts, 0, wanted[0], reached)
    first = max(good, key=lambda a: (a.speed, ":" not in a.address))
    chosen = [first]
    for place in others:
        if not wanted[place]:
            raise _unreached(hosts, place, wanted[place], reached)
        caller = reached[place, 0, first.address]
        chosen.append(next((a for a in wanted[place] if a.address == caller), wanted[place][0]))
    return chosen


def wanted_addresses(host: Host, addresses: Iterable[Address]) -> list[Address]:
    """The addresses of a host that the inventory allows."""
    return [
        a
        for a in addresses
        if host.address in (None, a.address) and host.interface in (None, a.interface)
    ]


def _unreached(
    hosts: Sequence[Host],
    place: int,
    wanted: Sequence[Address],
    reached: Collection[tuple[int, int, str]],
) -> TargetError:
    host, name = hosts[place], hosts[place].name
    if not wanted:
        return TargetError(
            f"{name}: found no {host.interface or host.address or 'address of another network'}",
            f"correct interface: or address: of {name} in hosts.yaml; on {name}: ip -brief address",
        )
    listed = ", ".join(f"{a.address} ({a.interface})" for a in wanted)
    others = [i for i in range(len(hosts)) if i != place]
    silent = [i for i in others if not any((i, place, a.address) in reached for a in wanted)]
    missing = ", ".join(hosts[i].name for i in (silent or others)[:4])
    return TargetError(
        f"{name}: {missing} cannot reach it at {listed}",
        f"open its TCP ports to the other hosts ({typed.command('docs', 'hosts')}), "
        "or set interface: for it",
    )


def decide_hosts(
    known: Sequence[HostFacts], busy: Mapping[str, str], job: JobSpec
) -> tuple[HostFacts, ...]:
    """The first hosts of the inventory that are free; an elastic job may get fewer than its MAX.

    ``busy`` says why a host cannot be used, also of hosts that are not ``known``. Raises
    ``TargetError`` if too few are left.
    """
    free = [facts for facts in known if facts.host.name not in busy]
    named = {*busy, *(facts.host.name for facts in known)}
    if len(free) < job.nnodes.min:
        reasons = "".join(f"\n  {name}: {why}" for name, why in busy.items())
        raise TargetError(
            f"nnodes is {job.nnodes}, but {len(free)} of {len(named)} hosts can be used{reasons}",
            "repair these hosts, name more, lower --nnodes, or wait: "
            f"{typed.command('hosts')} shows who holds them",
        )
    return tuple(free[: job.nnodes.max])


def check_clocks(hosts: Sequence[HostFacts], backend: str) -> None:
    """Raises ``TargetError`` under c10d if clocks differ too much.

    c10d stamps keep-alives with the time of day: beyond the limit the world splits, with no error.
    """
    slow = min(hosts, key=lambda facts: facts.clock_offset_s)
    fast = max(hosts, key=lambda facts: facts.clock_offset_s)
    apart_s = fast.clock_offset_s - slow.clock_offset_s
    if backend == "c10d" and apart_s > CLOCK_LIMIT_S:
        raise TargetError(
            f"{fast.host.name}: its clock is {apart_s:.0f} s ahead of {slow.host.name}'s, and the "
            f"rendezvous c10d allows {CLOCK_LIMIT_S:g} s",
            "timedatectl set-ntp true on both, or remove engine: torchrun, as the agent needs none",
        )


def check_versions(hosts: Sequence[HostFacts]) -> None:
    """Raises ``TargetError`` if hosts have different versions of torch."""
    versions = [facts.torch_version for facts in hosts]
    usual = max(versions, key=versions.count)
    if odd := [f"{f.host.name} {f.torch_version}" for f in hosts if f.torch_version != usual]:
        raise TargetError(
            f"torch is {usual} on most hosts, but: {', '.join(odd)}",
            f"install torch {usual} there, or name another python: in the inventory",
        )


def decide_unshared(sees: Sequence[Collection[int]]) -> tuple[int, ...]:
    """The hosts outside the largest group of hosts that see each other's files."""
    groups = [
        {other for other in range(len(sees)) if place in sees[other] and other in sees[place]}
        for place in range(len(sees))
    ]
    largest = max(groups, key=len, default=set())
    return tuple(place for place in range(len(sees)) if place not in largest)


def check_shared(names: Sequence[str], sees: Sequence[Collection[int]], folder: str) -> None:
    """Raises ``TargetError`` if hosts do not see each other's files in the checkpoint folder."""
    alone = decide_unshared(sees)
    if alone:
        listed = ", ".join(names[place] for place in alone)
        fix = "mount one there, or leave checkpoint_dir out: each host then keeps its own"
        if f"/{CHECKPOINTS_DIR}/" in folder:
            # Of an earlier run, which is resumed.
            mounted = "a folder that all hosts mount"
            fix = f"copy that of node 0 to {mounted}, and leave out --resume: --checkpoint-dir PATH"
        what = f"{listed}: checkpoint_dir {folder} is not the folder of the other hosts"
        raise TargetError(what, fix)


def shared_folder(job: JobSpec, cwd: str) -> str | None:
    """The job's checkpoint folder, which all hosts share; None if each has its own."""
    given = job.checkpoint_dir
    return given if given is None or given.startswith("/") else f"{cwd}/{given}"


def plan_facts(
    job: JobSpec,
    settings: HostsSettings,
    *,
    image: str | None,
    torch_version: str | None,
    port: int | None,
    run_root: str,
    cwd: str,
    inner: str | None = None,
    terminal: bool = False,
    names: Sequence[str | None] = (),
) -> TargetFacts:
    """The facts for the planner: each node has a machine of its own.

    ``port`` is free on all hosts; ``inner`` is the caller's folder in the code that is sent, None
    if none is sent. For a run in a hold, ``names`` are the names of the held nodes.
    """
    hosts, shared = settings.hosts, shared_folder(job, cwd)
    runs = {host.name: run_dir_on(host, RUN_ID) for host in hosts}
    caller = "" if inner is None else f"/{protocol.CODE_DIR}/{inner}".rstrip("/")
    return TargetFacts(
        target=TARGET,
        place=describe_hosts(hosts, image, shared=shared is not None),
        accelerator="cuda" if all(host.device_ids for host in hosts) else "cpu",
        machine=MachineFacts(cpu_count=min(host.cpu_count for host in hosts)),
        image=image,
        torch_version=torch_version,
        run_root=run_root,
        cwd=cwd,
        ports=() if port is None else (port,),
        # Only the job can say that hosts share a folder.
        shares_storage=shared is not None,
        terminal=terminal,
        nodes=tuple(
            NodeFacts(
                name=name,
                machine=host,
                folders=Folders(
                    run=runs[host.name],
                    # Without a shared folder each host has its own, which outlives the run.
                    checkpoints=shared or f"{host.state_dir}/{CHECKPOINTS_DIR}/{RUN_ID}",
                    cwd=f"{runs[host.name]}{caller}",
                    code=f"{runs[host.name]}/{protocol.CODE_DIR}",
                    # Containers of a hold see these folders under their own names.
                    in_container=settings.hold != "",
                ),
            )
            for host, name in zip(hosts, names or [None] * len(hosts), strict=True)
        ),
        own=settings,
    )


def describe_hosts(hosts: Sequence[HostFacts], image: str | None, *, shared: bool) -> str:
    """The machines, and what was checked before they were taken."""
    names = [host.name for host in hosts]
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    checked = "ssh, torch, ports, leases, clocks" if image is None else "ssh, Docker, ports, leases"
    ways = f", the way of each to {names[0]}" if len(names) > 1 else ""
    folder = ", one checkpoint folder" if len(names) > 1 and shared else ""
    return f"hosts {', '.join(names[:SHOWN_HOSTS])}{more} (checked: {checked}{ways}{folder})"


def find_caller(code: CodeRecord, cwd: Path) -> str:
    """The caller's folder below the code's root; if it is elsewhere, the working folder."""
    cwd = cwd.resolve()
    return cwd.relative_to(code.root).as_posix() if cwd.is_relative_to(code.root) else code.inner


def run_dir_on(host: HostFacts, run_id: str) -> str:
    """The run's folder on a host."""
    return f"{host.state_dir}/{RUNS_DIR}/{run_id}"
