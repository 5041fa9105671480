"""Every wait has an owner and an end: a table of all of them, and the sources are held to it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.launcher.find_waits import find_clocks, find_waits, find_zero_times
from tests.launcher.wait_table import TABLE
from tests.launcher.wait_table_words import Cannot

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher"
ENTERED = [function for row in TABLE for function in row.functions.split()]

WALL_CLOCKS = {
    "agent.worker.guard:_grace_s": "a deadline that two processes share",
    "targets.hosts.program.leases:_read": "an age that is shown",
    "targets.hosts.program.keeper:_revive": "counts over a start of the machine",
    "api.listing:_row": "an age that is shown",
}
"""Who reckons with the time of day, which may be set at any moment, and why."""
ZERO_TIMES = {"runs.timeline:measure_phases": "the first instant of a ledger, not of a clock"}


def test_every_call_that_may_block_is_in_the_table() -> None:
    found = find_waits(LAUNCHER)
    missing = {name: calls for name, calls in found.items() if name not in ENTERED}
    assert not missing, f"enter them in tests/launcher/wait_table.py: {missing}"


def test_the_table_names_only_what_is_there_and_each_once() -> None:
    found = find_waits(LAUNCHER)
    assert [name for name in ENTERED if name not in found] == []
    assert [name for name, times in Counter(ENTERED).items() if times > 1] == []


def test_every_row_has_a_limit_or_nobody_to_wait_for() -> None:
    for row in TABLE:
        waits = any(not isinstance(case, Cannot) for case in row.cases.values())
        assert bool(row.limit) == waits, row.who
        assert row.who, row.functions
        assert row.ends, row.functions


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """All tests that the table names files of, as pytest finds them; without their parameters."""
    files = {f"tests/{id.partition('::')[0]}" for id in _named()}
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, *sorted(files)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("tests/")]
    return {line.partition("[")[0].strip() for line in lines}


def _named() -> list[str]:
    cases = [case for row in TABLE for case in row.cases.values()]
    return [id for case in cases if not isinstance(case, Cannot) for id in case]


def test_every_case_is_held_by_tests_that_are_there(collected: set[str]) -> None:
    for row in TABLE:
        for name, case in row.cases.items():
            if isinstance(case, Cannot):
                assert case.why, f"{row.who}: {name}"
                continue
            assert case, f"{row.who}: {name}"
            assert [id for id in case if f"tests/{id}" not in collected] == [], row.who


def test_a_new_wait_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "class Some:\n"
        "    def wait_here(self):\n"
        "        self._thread.join()\n"
        "def look():\n"
        "    while True:\n"
        "        pass\n"
        "def ask(self):\n"
        "    return self.api.logs('x'), ', '.join(['a'])\n"
        "def join(words):\n"
        "    return ' '.join(words)\n"
    )
    assert set(find_waits(tmp_path)) == {"new:Some.wait_here", "new:look", "new:ask"}


def test_the_time_of_day_is_reckoned_with_where_it_is_listed_alone() -> None:
    assert set(find_clocks(LAUNCHER)) == set(WALL_CLOCKS)


def test_no_instant_that_never_was_is_0() -> None:
    """On a machine that has just been started, 0 is a moment ago; on others it is days ago."""
    assert set(find_zero_times(LAUNCHER)) == set(ZERO_TIMES)
