"""Hosts and the leases on them: read from all at once, shown as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.contract.errors import TargetError
from launcher.follow.table import render_columns
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.program.messages import HostReport, Lease, ReadHost
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import Ssh


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """One host; where it is not reached, ``error`` and ``hint`` say why, and the rest is empty."""

    host: str
    error: str = ""
    hint: str = ""
    gpus: Sequence[str] = ()
    free_gpus: Sequence[str] = ()
    slots: int = 0
    free_slots: int = 0
    leases: Sequence[Lease] = ()

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        known = ("host", "error", "hint", "leases") if self.error else vars(self)
        data = {key: getattr(self, key) for key in known}
        return {**data, "leases": [vars(lease) for lease in self.leases]}


def read_hosts_now(inventory: Inventory) -> list[HostRow]:
    """A row for each host, in order; one that is not reached has an ``error``."""
    ssh = Ssh(inventory)

    def read(host: Host) -> HostRow:
        try:
            with ssh.open(host) as session:
                asked = ReadHost(
                    state_dir=host.state_dir,
                    lease_dir=host.lease_dir,
                    python=host.python,
                    ports=[],
                    gpus=True,
                    runtime="none",
                )
                found = session.call(asked)
        except TargetError as error:
            return HostRow(host=host.name, error=error.what, hint=error.hint)
        return _row(host, found)

    return ssh.each(read, inventory.hosts)


def _row(host: Host, found: HostReport) -> HostRow:
    live = [lease for lease in found.leases if lease.live]
    held = {gpu for lease in live for gpu in lease.gpus}
    gpus = [gpu for gpu in found.gpus if host.gpus is None or gpu in host.gpus]
    slots = 0 if gpus else host.slots or found.cpu_count
    return HostRow(
        host=host.name,
        gpus=gpus,
        free_gpus=[gpu for gpu in gpus if gpu not in held],
        slots=slots,
        free_slots=max(0, slots - sum(lease.slots for lease in live)),
        leases=found.leases,
    )


def render_hosts_table(rows: Sequence[HostRow]) -> str:
    """For a person: a line for each host, and one for each further lease."""
    table = [("HOST", "FREE", "RUN", "OWNER", "HOLDS", "SINCE", "LEASE")]
    for row in rows:
        if row.error:
            table.append((row.host, "?", row.error.partition(": ")[2], "", "", "", ""))
            continue
        first = (row.host, _free(row))
        for lease in map(_lease, row.leases) if row.leases else [("-", "", "", "", "")]:
            table.append((*first, *lease))
            first = ("", "")
    hints = dict.fromkeys(f"  fix: {row.hint}\n" for row in rows if row.hint)
    return "\n".join((*render_columns(table), "".join(hints)))


def _free(row: HostRow) -> str:
    if row.gpus:
        return f"{len(row.free_gpus)} of {len(row.gpus)} GPUs"
    return f"{row.free_slots} of {row.slots} slots"


def _lease(lease: Lease) -> tuple[str, str, str, str, str]:
    holds = f"GPU {','.join(lease.gpus)}" if lease.gpus else f"{lease.slots} slots"
    kind = "detached" if lease.detached else "followed"
    # An expired lease holds nothing: its launcher and its keeper are both gone.
    state = f"live, {kind}" if lease.live else f"stale for {-lease.left_s:.0f} s"
    run = f"{lease.run_id} node {lease.node_index}"
    return run, lease.owner, holds, f"{lease.age_s:.0f} s", state
