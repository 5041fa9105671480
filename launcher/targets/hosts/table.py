"""Hosts and the leases on them: read from all at once, shown as a table."""

from __future__ import annotations

from typing import Any

from launcher.contract.errors import TargetError
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import Ssh

Row = dict[str, Any]
"""host, error, gpus, free_gpus, slots, free_slots, leases, as plain data."""


def read_hosts_now(inventory: Inventory) -> list[Row]:
    """A row for each host, in order; one that is not reached has an ``error``."""
    ssh = Ssh(inventory)

    def read(host: Host) -> Row:
        try:
            with ssh.open(host) as session:
                found = session.call(
                    "facts",
                    state_dir=host.state_dir,
                    lease_dir=host.lease_dir,
                    python=host.python,
                    ports=[],
                    gpus=True,
                    runtime="none",
                    image="",
                )
        except TargetError as error:
            return {"host": host.name, "error": error.what, "hint": error.hint, "leases": []}
        return _row(host, found)

    return ssh.each(read, inventory.hosts)


def _row(host: Host, found: dict[str, Any]) -> Row:
    live = [lease for lease in found["leases"] if lease["live"]]
    held = {gpu for lease in live for gpu in lease["gpus"]}
    gpus = [gpu for gpu in found["gpus"] if host.gpus is None or gpu in host.gpus]
    slots = 0 if gpus else host.slots or found["cpu_count"]
    return {
        "host": host.name,
        "error": "",
        "hint": "",
        "gpus": gpus,
        "free_gpus": [gpu for gpu in gpus if gpu not in held],
        "slots": slots,
        "free_slots": max(0, slots - sum(lease["slots"] for lease in live)),
        "leases": found["leases"],
    }


def render_hosts_table(rows: list[Row]) -> str:
    """For a person: a line for each host, and one for each further lease."""
    table = [("HOST", "FREE", "RUN", "OWNER", "HOLDS", "SINCE", "LEASE")]
    hints = []
    for row in rows:
        if row["error"]:
            table.append((row["host"], "?", row["error"].partition(": ")[2], "", "", "", ""))
            hints.append(f"  fix: {row['hint']}\n" if row["hint"] else "")
            continue
        first = (row["host"], _free(row))
        leases = [_lease(lease) for lease in row["leases"]] or [("-", "", "", "", "")]
        table += [
            ((*first, *lease) if i == 0 else ("", "", *lease)) for i, lease in enumerate(leases)
        ]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )
    return "\n".join(lines) + "\n" + "".join(dict.fromkeys(hints))


def _free(row: Row) -> str:
    if row["gpus"]:
        return f"{len(row['free_gpus'])} of {len(row['gpus'])} GPUs"
    return f"{row['free_slots']} of {row['slots']} slots"


def _lease(lease: dict[str, Any]) -> tuple[str, str, str, str, str]:
    holds = f"GPU {','.join(lease['gpus'])}" if lease["gpus"] else f"{lease['slots']} slots"
    kind = "detached" if lease["detached"] else "followed"
    # An expired lease holds nothing: its launcher and its keeper are both gone.
    state = f"live, {kind}" if lease["live"] else f"stale for {-lease['left_s']:.0f} s"
    run = f"{lease['run_id']} node {lease['node_index']}"
    return run, lease["owner"], holds, f"{lease['age_s']:.0f} s", state
