"""The recovery benchmark: readers, tables, nothing left behind, and one real sample."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import trees
from benchmarks.groups import Setting, find_first, parse_collectives
from benchmarks.measure import BenchmarkError, Measurement, Report, Row, parse_report
from benchmarks.recovery import time_restart
from benchmarks.table import render_table
from benchmarks.trees import Trees, parse_pss

TOLD = "1.5 2 0 10\n1.6 2 1 11\n9.5 1 0 12\n9.4 1 0 13\n9.9 1"
FOREVER = (sys.executable, "-c", "import time; time.sleep(600)")
PARENT = (
    *(sys.executable, "-c"),
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True)\n"
    "time.sleep(600)",
)


@pytest.mark.parametrize(
    ("size", "old_pids", "at"),
    [(2, (), 1.5), (2, (10,), 1.6), (1, (), 9.4), (1, (13,), 9.5), (1, (12, 13), None)],
)
def test_the_first_collective_of_new_workers_in_a_world_is_found(
    size: int, old_pids: tuple[int, ...], at: float | None
) -> None:
    found = find_first(parse_collectives(TOLD), size, frozenset(old_pids))
    assert (found and found.at) == at


def test_shared_memory_is_read_as_each_process_has_its_part_of_it() -> None:
    assert (
        parse_pss("00400000-7fff ---p [rollup]\nRss: 900 kB\nPss: 12 kB\nPss_Dirty: 8 kB") == 12288
    )


def test_memory_and_a_peer_that_does_nothing_are_told_as_such() -> None:
    rows = (
        Row(
            benchmark="recovery",
            what="memory",
            ours=Measurement(samples_s=(279.4,), unit="MB"),
            theirs=Measurement(samples_s=(816.1,), unit="MB"),
        ),
        Row(
            benchmark="recovery",
            what="loss",
            ours=Measurement(samples_s=(1.2,)),
            theirs_instead="> 60 s",
        ),
    )
    report = Report(
        benchmark="recovery", command="c", machine="m", load=0.0, taken="2026-01-02", rows=rows
    )
    assert parse_report(report.to_jsonable()) == report
    memory, loss = render_table(report).splitlines()[1:3]
    assert re.findall(r"\d+ MB", memory) == ["279 MB", "816 MB"]
    assert "> 60 s" in loss


def test_no_process_of_a_tree_is_left_even_after_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Trees(tmp_path, {}) as started:  # noqa: PT012
        started.start(PARENT)
        started.wait_for(lambda: len(started.living()) == 2, "a child in a session of its own")
        raise KeyboardInterrupt
    assert started.living() == []


def test_a_killed_tree_is_gone_and_its_neighbour_is_not(tmp_path: Path) -> None:
    with Trees(tmp_path, {}) as started:
        root, other = started.start(PARENT), started.start(FOREVER)
        started.wait_for(lambda: psutil.Process(root.pid).children(), "a child")
        started.kill(root)
        started.wait_for(lambda: len(started.living()) == 1, "the tree's end")
        assert started.living()[0].pid == other.pid


def test_what_does_not_come_is_an_error_with_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "LIMIT_S", 0.0)
    with Trees(tmp_path, {}) as started:
        started.start((sys.executable, "-c", "print('last words')")).wait()
        with pytest.raises(BenchmarkError, match=r"a sign did not come(?s:.*)last words"):
            started.wait_for(lambda: False, "a sign")


def test_one_worker_is_killed_and_the_next_collective_is_seen() -> None:
    began = time.monotonic()
    assert 0 < time_restart(Setting(side="agent")) < time.monotonic() - began
