"""``hosts``: what each machine of an inventory has, and who holds it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from launcher.commands.arguments import add_command, add_hosts, read_hosts
from launcher.contract.errors import ExitCode, InputError


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    parser = add_command(commands, "hosts", _hosts, "show hosts, their GPUs, and who holds them")
    add_hosts(parser)
    parser.add_argument("--json", action="store_true")


def _hosts(arguments: argparse.Namespace) -> int:
    from launcher.targets.hosts.table import read_hosts_now, render_hosts_table

    inventory = read_hosts(arguments)
    if inventory is None:
        raise InputError("no hosts are named", "launcher hosts --hosts hosts.yaml")
    rows = read_hosts_now(inventory)
    if arguments.json:
        print(json.dumps([row.to_jsonable() for row in rows], indent=2))
    else:
        sys.stdout.write(render_hosts_table(rows))
    failed = any(row.error for row in rows)
    return int(ExitCode.TARGET_UNREACHABLE if failed else ExitCode.OK)
