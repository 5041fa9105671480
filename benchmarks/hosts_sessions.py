"""Opening sessions to many hosts at once, against a plain parallel ssh loop.

Where the hosts are fewer than the sessions, each gets several.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from benchmarks import memory_watch
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Comparison, Round, Trial
from launcher.contract.errors import TargetError
from launcher.targets.hosts.inventory.inventory import Inventory, read_inventory
from launcher.targets.hosts.program.code_store import has_code
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh

SESSIONS = (4, 16, 64, 128)
FEW, MANY = 16, 128


@dataclass(frozen=True, kw_only=True)
class Fanout:
    """One fan-out: seconds, and the memory that it took at its peak in MB."""

    seconds: float
    memory_mb: float


def sessions(given: str) -> Generator[Trial]:
    """Two rows for each number of sessions, time and memory, and how both grow."""
    inventory = read_inventory(given)
    for count in SESSIONS:
        what = f"{count} sessions to {min(count, len(inventory.hosts))} hosts"
        yield Trial(
            take=partial(take_both_sides, inventory, count),
            rows=(
                Comparison(what=what, goal=Goal(of="ratio", most=1.0)),
                Comparison(
                    what=f"{what}, memory",
                    ours="our memory",
                    theirs="their memory",
                    goal=Goal(of="ratio", most=1.2),
                    unit="MB",
                ),
            ),
        )
    what, linear = f"one session, of {MANY} against of {FEW}", Goal(of="ratio", most=1.1)
    yield Trial(
        take=partial(take_few_and_many, inventory),
        rows=(
            Comparison(what=f"{what}: time", ours="many", theirs="few", goal=linear),
            Comparison(
                what=f"{what}: memory",
                ours="memory of many",
                theirs="memory of few",
                goal=linear,
                unit="MB",
            ),
        ),
    )


def take_both_sides(inventory: Inventory, count: int) -> Round:
    """So many sessions by each side."""
    hosts = _hosts(inventory, count)
    ours, theirs = open_all(inventory, hosts), loop_over(inventory, hosts)
    return {
        "ours": ours.seconds,
        "theirs": theirs.seconds,
        "our memory": ours.memory_mb,
        "their memory": theirs.memory_mb,
    }


def take_few_and_many(inventory: Inventory) -> Round:
    """What one session takes on our side, of many and of few."""
    many, few = (open_all(inventory, _hosts(inventory, count)) for count in (MANY, FEW))
    return {
        "many": many.seconds / MANY,
        "few": few.seconds / FEW,
        "memory of many": many.memory_mb / MANY,
        "memory of few": few.memory_mb / FEW,
    }


def _hosts(inventory: Inventory, count: int) -> list[Host]:
    return list(itertools.islice(itertools.cycle(inventory.hosts), count))


def open_all(inventory: Inventory, hosts: list[Host]) -> Fanout:
    """Until each of ``hosts`` has answered, from no connection at all."""
    ssh = Ssh(inventory)
    for host in inventory.hosts:
        ssh.disconnect(host)

    def ask(host: Host) -> None:
        with ssh.open(host) as session:
            session.call(has_code, state_dir="/nowhere", hash="none")

    try:
        return measure(lambda: ssh.each(ask, hosts))
    except TargetError as error:
        raise BenchmarkError(f"{len(hosts)} sessions: {error}") from error


def loop_over(inventory: Inventory, hosts: list[Host]) -> Fanout:
    """``for host in ...; do ssh host python3 -c pass & done; wait``."""
    config = ("-F", inventory.ssh_config) if inventory.ssh_config else ()

    def loop() -> None:
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

    return measure(loop)


def measure(work: Callable[[], object]) -> Fanout:
    """Runs it, and has another process watch the memory meanwhile."""
    argv = (sys.executable, memory_watch.__file__, str(os.getpid()))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdin is not None
        assert watch.stdout is not None
        watch.stdout.readline()
        before = memory_watch.read_memory_mb(os.getpid())
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        watch.stdin.close()
        peak = float(watch.stdout.read())
    return Fanout(seconds=seconds, memory_mb=max(0.0, peak - before))
