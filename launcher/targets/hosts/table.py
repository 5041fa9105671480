"""``launcher hosts``: a table of hosts, what is free on each, and who holds the rest."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError, TargetError
from launcher.follow.table import render_columns
from launcher.targets.hosts.program.facts import read_host
from launcher.targets.hosts.program.messages import HostReport, Lease
from launcher.targets.hosts.room import read_hosts
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.hosts.survey import allowed_gpus, free_gpus


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """One host; where it is not reached, ``error`` and ``hint`` say why, and the rest is empty.

    ``slots`` is None where nothing limits them, on a host without GPUs.
    """

    host: str
    error: str = ""
    hint: str = ""
    gpus: Sequence[str] = ()
    free_gpus: Sequence[str] = ()
    slots: int | None = 0
    free_slots: int | None = 0
    leases: Sequence[Lease] = ()


def show_hosts(arguments: Namespace) -> tuple[str, int]:
    """``launcher hosts``: what each machine of an inventory has, and who holds it."""
    inventory = read_hosts(arguments)
    if inventory is None:
        raise InputError("no hosts are named", typed.command("hosts", "--hosts", "hosts.yaml"))

    def read_report(session: Session) -> HostReport:
        host = session.host
        return session.call(
            read_host, state_dir=host.state_dir, lease_dir=host.lease_dir, python=host.python
        )

    answers = Ssh(inventory).try_each(read_report, inventory.hosts)
    rows = [_row(host, answer) for host, answer in zip(inventory.hosts, answers, strict=True)]
    text = render_hosts_table(rows)
    if arguments.json:
        text = json.dumps(rows, indent=2, default=vars) + "\n"
    failed = any(row.error for row in rows)
    return text, int(ExitCode.TARGET_UNREACHABLE if failed else ExitCode.OK)


def _row(host: Host, answer: HostReport | TargetError) -> HostRow:
    if isinstance(answer, TargetError):
        return HostRow(host=host.name, error=answer.what, hint=answer.hint)
    gpus = allowed_gpus(host, answer)
    slots = 0 if gpus else host.slots
    held = sum(lease.slots for lease in answer.leases)
    return HostRow(
        host=host.name,
        gpus=gpus,
        free_gpus=free_gpus(host, answer),
        slots=slots,
        free_slots=None if slots is None else max(0, slots - held),
        leases=answer.leases,
    )


def render_hosts_table(rows: Sequence[HostRow]) -> str:
    """For a person: a line for each host, and one for each further lease."""
    table = [("HOST", "FREE", "RUN", "OWNER", "HOLDS", "SINCE", "LEASE")]
    for row in rows:
        if row.error:
            table.append((row.host, "?", row.error.partition(": ")[2], "", "", "", ""))
            continue
        free = "slots: no limit" if row.slots is None else f"{row.free_slots} of {row.slots} slots"
        if row.gpus:
            free = f"{len(row.free_gpus)} of {len(row.gpus)} GPUs"
        first = (row.host, free)
        table += [] if row.leases else [(*first, "-", "", "", "", "")]
        for lease in row.leases:
            run, age = f"{lease.run_id} node {lease.node_index}", f"{lease.age_s:.0f} s"
            state = "detached" if lease.detached else "followed"
            table.append((*first, run, lease.owner, lease.holding, age, state))
            first = ("", "")
    hints = dict.fromkeys(f"  fix: {row.hint}\n" for row in rows if row.hint)
    return "\n".join((*render_columns(table), "".join(hints)))
