"""A run that another machine started, found on its hosts by its id and copied to a folder here."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError, TargetError
from launcher.follow.target import ListedRun
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.runs.folder import RunFolder, find_run, list_runs
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program import requests
from launcher.targets.hosts.program.messages import LeftOnHost, RunOnHost
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh, joined
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.room import Left

Copies = list[tuple[Host, RunOnHost]]
"""What several hosts say of one run."""


def find_named(inventory: Inventory | None, run_root: Path, name: str) -> RunFolder:
    """The run from its folder here, or else from the hosts, if any are named.

    ``name`` is a run id, its beginning, or ``latest``, which on hosts works if they have only one
    run. A run from hosts gets a folder here, with all its files. Raises ``InputError`` if no run
    or several fit.
    """
    try:
        run = find_run(run_root, name)
        if inventory is None or not run.is_foreign:
            return run
        name = run.run_id
    except InputError:
        if inventory is None:
            raise
    by_id = read_runs(inventory, "" if name == protocol.LATEST_LINK else name)
    if len(by_id) != 1:
        fits = f"{name!r} may be any of {', '.join(sorted(by_id))}" if by_id else f"no run {name!r}"
        raise InputError(
            f"{fits}, on these hosts", f"{typed.command('hosts')} shows the runs that hold them"
        )
    ((run_id, copies),) = by_id.items()
    plan = localise(copies, str(run_root.absolute() / run_id), inventory)
    run = RunFolder(Path(plan.run_dir))
    target = HostsTarget(run_root, inventory)
    run.create(plan, target.render(plan).shell(), began_at(copies))
    # This copies what the hosts that answer have of it.
    target.observe_reachable(plan)
    return run


def read_runs(inventory: Inventory, wanted: str = "") -> dict[str, Copies]:
    """Runs whose id begins with ``wanted``, by their ids, from all hosts that answer.

    Raises ``TargetError`` if none answers.
    """

    def list_there(session: Session) -> Sequence[RunOnHost]:
        return session.call(requests.list_runs, state_dir=session.host.state_dir, run_id=wanted)

    answers = Ssh(inventory).try_each(list_there, inventory.hosts)
    errors = [answer for answer in answers if isinstance(answer, TargetError)]
    if len(errors) == len(answers):
        raise joined(errors)
    by_id: dict[str, Copies] = {}
    for host, answer in zip(inventory.hosts, answers, strict=True):
        for run in () if isinstance(answer, TargetError) else answer:
            by_id.setdefault(run.run_id, []).append((host, run))
    return by_id


def list_on_hosts(inventory: Inventory, run_root: Path) -> list[ListedRun]:
    """A row for each run on these hosts that has no folder here."""
    known, now = [run.run_id for run in list_runs(run_root)], time.time()
    rows = []
    for run_id, copies in sorted(read_runs(inventory).items()):
        if run_id not in known:
            plan = plan_in_force(copies)
            row = ListedRun(
                run_id=run_id,
                job=plan.job_name,
                target=plan.target,
                state="running" if any(run.lives for _, run in copies) else "ended",
                nnodes=len(plan.nodes),
                age_s=round(now - began_at(copies), 1),
                folder="",
            )
            rows.append(row)
    return rows


def find_left(inventory: Inventory, note: Callable[[str], None]) -> list[Left]:
    """What runs that do not live have left on the hosts; ``note`` is told of those away."""

    def find_there(session: Session, remove: str = "") -> Sequence[LeftOnHost]:
        return session.call(requests.find_left, state_dir=session.host.state_dir, remove=remove)

    def remove(host: Host, run_id: str) -> None:
        with ssh.open(host) as session:
            find_there(session, run_id)

    ssh, left = Ssh(inventory), list[Left]()
    for host, answer in zip(
        inventory.hosts, ssh.try_each(find_there, inventory.hosts), strict=True
    ):
        if isinstance(answer, TargetError):
            note(answer.what)
            continue
        for leftover in answer:
            gone = functools.partial(remove, host, leftover.run_id)
            left.append(Left(place=host.name, remove=gone, **vars(leftover)))
    return left


def began_at(copies: Copies) -> float:
    """When the run's first node was made ready, by the hosts' clocks. Pure."""
    return min(run.began_at for _, run in copies)


def plan_in_force(copies: Copies) -> LaunchPlan:
    """The plan with the most starts; some hosts may have older copies. Pure."""
    plans = [parse_plan(run.plan) for _, run in copies]
    return max(plans, key=lambda plan: (plan.attempt, sum(n.incarnation for n in plan.nodes)))


def localise(copies: Copies, run_dir: str, inventory: Inventory) -> LaunchPlan:
    """The plan with this machine's folder and names of hosts; the hosts' own folders stay. Pure."""
    plan = plan_in_force(copies)
    settings = HostsSettings.of(plan)

    def find_holder(index: int, known: Host) -> Host:
        holders = {host.name: host for host, run in copies for held in run.nodes if held == index}
        # Hosts that share a home all have every node's folder: only the name says whose it is.
        return holders.get(known.name) or next(iter(holders.values()), known)

    hosts = tuple(
        replace(facts, host=find_holder(index, facts.host))
        for index, facts in enumerate(settings.hosts)
    )
    settings = replace(settings, hosts=hosts, ssh_config=inventory.ssh_config)
    return replace(plan, run_dir=run_dir, own=settings)
