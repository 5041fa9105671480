"""A run that another machine started, found on its hosts by its id and copied to a folder here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.errors import InputError, TargetError
from launcher.follow.target import ListedRun
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.runs.folder import RunFolder
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.program.messages import ListRuns, RunOnHost
from launcher.targets.hosts.settings import Host, HostsSettings
from launcher.targets.hosts.ssh import Ssh, joined
from launcher.targets.hosts.target import HostsTarget


def adopt_run(inventory: Inventory, run_root: Path, name: str) -> RunFolder:
    """Makes a run folder of a run on these hosts, with all that they have of it.

    ``name`` is a run id, its beginning, or ``latest`` where only one run is there. Raises
    ``InputError`` where none or several fit.
    """
    wanted = "" if name == protocol.LATEST_LINK else name
    told = read_runs(inventory, wanted)
    ids = sorted({found.run_id for runs in told.values() for found in runs})
    if len(ids) != 1:
        fits = f"{name!r} may be any of {', '.join(ids)}" if ids else f"no run {name!r}"
        raise InputError(f"{fits}, on these hosts", "launcher hosts shows the runs that hold them")
    plan = localise(ids[0], told, run_root, inventory)
    run = RunFolder(Path(plan.run_dir))
    target = HostsTarget(run_root, inventory)
    run.create(plan, target.render(plan).shell(), began_at(ids[0], told))
    target.collect(plan)
    return run


Told = dict[Host, Sequence[RunOnHost]]
"""The runs that each host knows, of the hosts that answer."""


def read_runs(inventory: Inventory, wanted: str = "") -> Told:
    """Runs whose id begins so, from all hosts that answer.

    Raises ``TargetError`` where none answers.
    """
    ssh = Ssh(inventory)

    def read(host: Host) -> Sequence[RunOnHost] | TargetError:
        try:
            with ssh.open(host) as session:
                return session.call(ListRuns(state_dir=host.state_dir, run_id=wanted)).runs
        except TargetError as error:
            return error

    told = dict(zip(inventory.hosts, ssh.each(read, inventory.hosts), strict=True))
    errors = [answer for answer in told.values() if isinstance(answer, TargetError)]
    if len(errors) == len(told):
        raise joined(errors)
    return {host: runs for host, runs in told.items() if not isinstance(runs, TargetError)}


def list_on_hosts(inventory: Inventory, known: Collection[str], now: float) -> list[ListedRun]:
    """A row for each run on these hosts that is not among the ``known`` ones."""
    told = read_runs(inventory)
    ids = sorted({found.run_id for runs in told.values() for found in runs} - set(known))
    rows = []
    for run_id in ids:
        own = [f for runs in told.values() for f in runs if f.run_id == run_id]
        plan = max((parse_plan(found.plan) for found in own), key=_age)
        row = ListedRun(
            run_id=run_id,
            job=plan.job_name,
            target=plan.target,
            state="running" if any(found.lives for found in own) else "ended",
            nnodes=len(plan.nodes),
            age_s=round(now - began_at(run_id, told), 1),
            folder="",
        )
        rows.append(row)
    return rows


def began_at(run_id: str, told: Told) -> float:
    """When the run's first node was made ready, by the hosts' clocks. Pure."""
    own = [found for runs in told.values() for found in runs if found.run_id == run_id]
    return min(found.began_at for found in own)


def _age(plan: LaunchPlan) -> tuple[int, int]:
    """Of several hosts' copies of the plan the one in force has the most starts behind it."""
    return plan.attempt, sum(node.incarnation for node in plan.nodes)


def localise(run_id: str, told: Told, run_root: Path, inventory: Inventory) -> LaunchPlan:
    """The plan with this machine's folder and names of hosts; the hosts' own folders stay. Pure."""
    holders = {
        index: host
        for host, runs in told.items()
        for found in runs
        if found.run_id == run_id
        for index in found.nodes
    }
    texts = [f.plan for runs in told.values() for f in runs if f.run_id == run_id]
    plan = max((parse_plan(text) for text in texts), key=_age)
    own = HostsSettings.of(plan)
    hosts = tuple(
        replace(facts, host=holders.get(index, facts.host)) for index, facts in enumerate(own.hosts)
    )
    run_dir = str(run_root.absolute() / run_id)
    own = replace(own, hosts=hosts, ssh_config=inventory.ssh_config)
    return replace(plan, run_dir=run_dir, own=own)
