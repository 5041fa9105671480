"""``hosts``: sessions to many hosts at once, and whole runs on two, beside ssh in a shell loop."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.hosts_runs import measure_runs
from benchmarks.hosts_sessions import measure_sessions
from benchmarks.machines import find_machines
from benchmarks.measure import Row


def measure_hosts(repetitions: int) -> Iterator[Row]:
    """Raises BenchmarkError where no machines are named and none can be made here."""
    with find_machines() as given:
        yield from measure_runs(given, repetitions)
        yield from measure_sessions(given, repetitions)
