"""``hosts``: opening sessions to many hosts at once, against a plain parallel ssh loop.

Needs hosts: ``LAUNCHER_HOSTS`` names them as for the launcher. Where they are fewer than the
sessions, each gets several.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator

from benchmarks.measure import BenchmarkError, Goal, Row, interleave
from launcher.hosts import Host
from launcher.inventory import Inventory, read_inventory
from launcher.targets.ssh import Ssh

SESSIONS = (4, 16, 64, 128)


def measure_hosts(repetitions: int) -> Iterator[Row]:
    """A row for each number of sessions: from nothing open to every host's first answer."""
    given = os.environ.get("LAUNCHER_HOSTS")
    if not given:
        raise BenchmarkError("it needs machines; fix: export LAUNCHER_HOSTS=hosts.yaml")
    inventory = read_inventory(given)
    for count in SESSIONS:
        hosts = list(itertools.islice(itertools.cycle(inventory.hosts), count))
        ours, theirs = interleave(
            repetitions,
            lambda hosts=hosts: open_all(inventory, hosts),  # type: ignore[misc]
            lambda hosts=hosts: loop_over(inventory, hosts),  # type: ignore[misc]
        )
        yield Row(
            benchmark="hosts",
            what=f"{count} sessions to {len(inventory.hosts)} hosts",
            ours=ours,
            theirs=theirs,
            goal=Goal(of="ratio", most=1.0),
        )


def open_all(inventory: Inventory, hosts: list[Host]) -> float:
    """Seconds until each of ``hosts`` has answered, from no connection at all."""
    ssh = Ssh(inventory)
    for host in inventory.hosts:
        ssh.disconnect(host)

    def ask(host: Host) -> None:
        with ssh.open(host) as session:
            session.call("has", state_dir="/nowhere", hashes=[])

    began = time.perf_counter()
    ssh.each(ask, hosts)
    return time.perf_counter() - began


def loop_over(inventory: Inventory, hosts: list[Host]) -> float:
    """Seconds of ``for host in ...; do ssh host python3 -c pass & done; wait``."""
    config = ("-F", inventory.ssh_config) if inventory.ssh_config else ()
    began = time.perf_counter()
    children = [
        subprocess.Popen(
            ("ssh", *config, "-o", "BatchMode=yes", "--", host.name, "python3", "-c", "pass"),
            stdin=subprocess.DEVNULL,
        )
        for host in hosts
    ]
    failed = sum(child.wait() != 0 for child in children)
    if failed:
        raise BenchmarkError(f"{failed} of {len(hosts)} plain ssh sessions failed")
    return time.perf_counter() - began
