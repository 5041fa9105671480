"""A run that another machine started, found on its hosts by its id and copied to a folder here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import contract
from launcher.clock import SystemClock
from launcher.errors import InputError
from launcher.hosts import Host
from launcher.inventory import Inventory
from launcher.plan import LaunchPlan, parse_plan
from launcher.runs import RunFolder
from launcher.targets.hosts import HostsTarget
from launcher.targets.ssh import Ssh


def adopt_run(inventory: Inventory, run_root: Path, name: str) -> RunFolder:
    """Makes a run folder of a run on these hosts, with all that they have of it.

    ``name`` is a run id, its beginning, or ``latest`` where only one run is there. Raises
    ``InputError`` where none or several fit.
    """
    wanted = "" if name == contract.LATEST_LINK else name
    ssh = Ssh(inventory)

    def read(host: Host) -> list[dict[str, Any]]:
        with ssh.open(host) as session:
            found: list[dict[str, Any]] = session.call(
                "runs", state_dir=host.state_dir, run_id=wanted
            )["runs"]
            return found

    told = dict(zip(inventory.hosts, ssh.each(read, inventory.hosts), strict=True))
    ids = sorted({found["run_id"] for runs in told.values() for found in runs})
    if len(ids) != 1:
        fits = f"{name!r} may be any of {', '.join(ids)}" if ids else f"no run {name!r}"
        raise InputError(f"{fits}, on these hosts", "launcher hosts shows the runs that hold them")
    plan = localise(ids[0], told, run_root, inventory)
    run = RunFolder(Path(plan.run_dir))
    target = HostsTarget(run_root, inventory)
    run.create(plan, target.render(plan).shell(), SystemClock().wall())
    target.collect(plan)
    return run


def localise(
    run_id: str, told: dict[Host, list[dict[str, Any]]], run_root: Path, inventory: Inventory
) -> LaunchPlan:
    """The plan with this machine's folder and names of hosts; the hosts' own folders stay. Pure."""
    holders = {
        index: host
        for host, runs in told.items()
        for found in runs
        if found["run_id"] == run_id
        for index in found["nodes"]
    }
    text = next(f["plan"] for runs in told.values() for f in runs if f["run_id"] == run_id)
    plan = parse_plan(text)
    hosts = tuple(
        replace(facts, host=holders.get(index, facts.host))
        for index, facts in enumerate(plan.hosts)
    )
    run_dir = str(run_root.absolute() / run_id)
    return replace(plan, hosts=hosts, run_dir=run_dir, ssh_config=inventory.ssh_config)
