"""The room of target ``hosts``: the options that name machines, and runs found on them."""

from __future__ import annotations

import functools
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.contract.errors import InputError
from launcher.targets.room import AddCommand, GivenOptions, Left, Note, Room, words_given

if TYPE_CHECKING:
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder
    from launcher.targets.hosts.inventory.inventory import Inventory

FILTERS = ("include", "exclude", "accept_new_host_keys")
"""Options that say which of the named hosts are taken, and how."""


class HostsRoom(Room):
    """Machines reached over SSH, one node on each."""

    name = "hosts"
    finds_runs = "beside"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.hosts.target import HostsTarget

        return HostsTarget(run_root, read_hosts(arguments), _filters(arguments))

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        from launcher.targets.hosts.doctor import diagnose_hosts
        from launcher.targets.hosts.inventory.inventory import read_inventory_of

        inventory = read_hosts(arguments) or read_inventory_of(job, **_filters(arguments))
        return diagnose_hosts(job, inventory, folder, limit_s)

    # -- the command line -------------------------------------------------------------------------

    def add_options(self, parser: ArgumentParser, of: Literal["run", "job", "doctor"]) -> None:
        parser.add_argument(
            "--hosts",
            default=os.environ.get("LAUNCHER_HOSTS") or None,
            metavar="FILE|NAMES",
            help="hosts.yaml, a hostfile, or names such as gpu[1-4] (default: $LAUNCHER_HOSTS)",
        )
        only = "only these: gpu1,gpu[3-4]"
        parser.add_argument("--include", default="", metavar="HOSTS", help=only)
        parser.add_argument("--exclude", default="", metavar="HOSTS", help="all but these")
        parser.add_argument(
            "--accept-new-host-keys",
            action="store_true",
            help="remember the keys of hosts never seen before; a changed key stays refused",
        )

    def add_commands(self, add: AddCommand) -> None:
        text = "show hosts, their GPUs, and who holds them"
        add("hosts", "launcher.targets.hosts.table:show_hosts", text, self._add_to_hosts)

    def _add_to_hosts(self, parser: ArgumentParser) -> None:
        self.add_options(parser, "run")
        parser.add_argument("--json", action="store_true")

    def read_options(self, arguments: Namespace) -> GivenOptions:
        on, is_named = getattr(arguments, "on", None), getattr(arguments, "hosts", None) is not None
        if "set" not in arguments:
            return GivenOptions(names_runs=on == self.name or is_named)
        if on == self.name or (on is None and is_named):
            sample = functools.partial(_sample_job, arguments) if is_named else None
            return GivenOptions(is_named=is_named, sample_job=sample)
        if given := words_given(arguments, FILTERS):
            raise InputError(f"{' '.join(given)} without --on {self.name}", f"--on {self.name}")
        typed = words_given(arguments, ("hosts",))
        if typed and typed[1] != os.environ.get("LAUNCHER_HOSTS"):
            fix = f"--on {self.name}, or leave out --hosts"
            raise InputError(f"{' '.join(typed)} with --on {on}", fix)
        return GivenOptions()

    # -- runs that are found there ----------------------------------------------------------------

    def find_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError | None = None
    ) -> RunFolder | None:
        if otherwise is not None:
            return None
        from launcher.targets.hosts.adopt import find_named

        return find_named(read_hosts(arguments), run_root, arguments.run)

    def list_runs(
        self, arguments: Namespace, run_root: Path, note: Note, *, everything: bool
    ) -> list[ListedRun]:
        if (inventory := read_hosts(arguments)) is None:
            return []
        from launcher.targets.hosts.adopt import list_on_hosts

        return list_on_hosts(inventory, run_root)

    def find_left(self, arguments: Namespace, note: Note) -> list[Left]:
        if (inventory := read_hosts(arguments)) is None:
            return []
        from launcher.targets.hosts.adopt import find_left

        return find_left(inventory, note)


def _sample_job(arguments: Namespace) -> str:
    inventory = read_hosts(arguments)
    assert inventory is not None, "made only where hosts are named"
    return f"name: doctor\ncommand: [doctor]\nnnodes: {len(inventory.hosts)}\n"


def read_hosts(arguments: Namespace | None) -> Inventory | None:
    """The machines that the command line names; None if it names none."""
    from launcher.targets.hosts.inventory.inventory import read_inventory

    if arguments is None or arguments.hosts is None:
        return None
    return read_inventory(arguments.hosts, **_filters(arguments))


def _filters(arguments: Namespace | None) -> dict[str, Any]:
    return {} if arguments is None else {name: getattr(arguments, name) for name in FILTERS}
