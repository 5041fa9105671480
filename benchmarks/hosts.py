"""``hosts``: sessions to many hosts at once, and whole runs on two, beside ssh in a shell loop."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks.hosts_runs import runs_on_hosts
from benchmarks.hosts_sessions import sessions
from benchmarks.machines import find_machines
from benchmarks.trials import Trial


def hosts() -> Generator[Trial]:
    """Raises BenchmarkError where no machines are named and none can be made here."""
    with find_machines() as machines:
        yield from runs_on_hosts(machines.given)
        yield from sessions(machines.many)
