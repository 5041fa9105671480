"""The program as a whole, and that the peers do the same work. Times are never asserted."""

import json
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import record
from benchmarks.catalog import BENCHMARKS
from benchmarks.commands import ROOT
from benchmarks.machine import wait_until_quiet
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.record import BEGIN, END
from benchmarks.trials import Benchmark, Trial, compare

LINE = "| nothing: none | 1.00 s (1.00 to 1.00) |"


def nothing() -> Generator[Trial]:
    yield compare("none", lambda: 1.0, lambda: 2.0, Goal(of="ratio", most=0.8))


def failing() -> Generator[Trial]:
    raise BenchmarkError("no torch; fix: make setup")
    yield


def interrupted() -> Generator[Trial]:
    yield from nothing()
    raise KeyboardInterrupt


FAKES = {
    "nothing": Benchmark(trials=nothing, limit_s=0),
    "failing": Benchmark(trials=failing, limit_s=0),
    "interrupted": Benchmark(trials=interrupted, limit_s=0),
}


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "BENCHMARKS", FAKES)
    set_load(monkeypatch, 0.5)
    # What the program takes out of its environment comes back.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    monkeypatch.setattr(record, "PAGE", path)
    return path


def set_load(monkeypatch: pytest.MonkeyPatch, *loads: float) -> None:
    """What the machine's load is each time that somebody looks; the last one stays."""
    left = list(loads)
    read = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
    monkeypatch.setattr(program, "read_load", read)
    monkeypatch.setattr(program, "wait_until_quiet", read)


def test_a_report_is_printed_and_written(tmp_path, capsys):
    file = tmp_path / "report.json"
    assert program.main(["nothing", "--pairs", "2", "--limit-s", "9", "--json", str(file)]) == 0
    assert "nothing: none  1.00 s (1.00 to 1.00)" in capsys.readouterr().out
    (report,) = json.loads(file.read_text())["reports"]
    assert report["command"] == "make bench 'ARGS=nothing --pairs 2 --limit-s 9'"
    assert str(tmp_path) not in file.read_text()


def test_a_benchmark_that_cannot_run_leaves_the_others(capsys):
    assert program.main(["failing", "nothing"]) == 1
    shown = capsys.readouterr()
    assert "nothing: none" in shown.out
    assert "error: failing cannot run: no torch; fix: make setup" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["strat"], "no benchmark strat; there are: nothing, failing"),
        (["--pairs", "0"], "--pairs 0: one pair is the least; type --pairs 1"),
        (["--limit-s", "-1"], "--limit-s -1: 0 is the least"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(arguments)
    assert said in capsys.readouterr().err


def test_rows_are_recorded_as_each_benchmark_ends_and_the_rest_is_named(page, capsys):
    assert program.main(["nothing", "interrupted", "failing", "--record"]) == 130
    assert page.read_text().count(LINE) == 1
    assert "interrupted:" not in page.read_text()
    left = "what is left: make bench 'ARGS=interrupted failing --record'"
    assert left in capsys.readouterr().err


def test_rows_of_a_benchmark_replace_those_that_were_recorded_before(page):
    for _ in range(2):
        assert program.main(["nothing", "--record"]) == 0
    assert page.read_text().count(LINE) == 1
    assert "make bench 'ARGS=nothing --record'" in page.read_text()


def test_nothing_is_recorded_on_a_busy_machine(page, monkeypatch, capsys):
    set_load(monkeypatch, 1.2)
    before = page.read_text()
    assert program.main(["nothing", "--record"]) == 2
    assert page.read_text() == before
    said = capsys.readouterr()
    assert "nothing: none" not in said.out
    assert "error: --record: the load is 1.2 at the start; above 1 other work" in said.err
    assert "type make bench 'ARGS=nothing --record'" in said.err
    assert "without recording: make bench ARGS=nothing\n" in said.err
    assert program.main(["nothing"]) == 0
    assert "nothing: none" in capsys.readouterr().out


def test_work_that_begins_meanwhile_ends_a_recording_with_what_it_has(page, monkeypatch, capsys):
    set_load(monkeypatch, 0.2, 3.0)
    assert program.main(["nothing", "failing", "--record"]) == 2
    assert page.read_text().count(LINE) == 1
    assert "type make bench 'ARGS=failing --record'" in capsys.readouterr().err


def test_the_load_of_the_benchmark_before_is_waited_for():
    loads, slept = [3.0, 1.5, 0.9, 0.1], []
    assert wait_until_quiet(lambda: loads.pop(0), slept.append) == 0.9
    assert len(slept) == 2


def test_reports_are_put_into_the_docs(tmp_path, page):
    file = tmp_path / "report.json"
    assert program.main(["nothing", "--json", str(file)]) == 0
    for _ in range(2):
        assert record.main([str(file)]) == 0
    assert page.read_text().count(LINE) == 1


def test_a_report_of_a_busy_machine_is_not_put_into_the_docs(tmp_path, page, monkeypatch, capsys):
    set_load(monkeypatch, 2.5)
    file = tmp_path / "report.json"
    assert program.main(["nothing", "--json", str(file)]) == 0
    assert record.main([str(file)]) == 2
    assert LINE not in page.read_text()
    said = capsys.readouterr().err
    assert "report.json: nothing: the load is 2.5 at the start" in said
    assert f"make bench ARGS=nothing --json {file}" not in said
    assert f"make bench 'ARGS=nothing --json {file}'" in said


def test_what_is_no_report_is_refused(tmp_path, capsys):
    file = tmp_path / "report.json"
    for text in ("{}", "[]", '{"reports": [{}]}', '{"reports": 1}'):
        file.write_text(text)
        assert record.main([str(file)]) == 2
        assert "is not a report" in capsys.readouterr().err


def test_how_long_each_benchmark_takes_is_in_the_docs():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([a-z, -]+) \|$", text, re.MULTILINE)
    told = {name: int(limit_s) for limit_s, names in rows for name in names.split(", ")}
    assert told == {name: benchmark.limit_s for name, benchmark in BENCHMARKS.items()}
    assert {name: benchmark.pairs for name, benchmark in BENCHMARKS.items()} == (
        dict.fromkeys(BENCHMARKS, 6) | {"why": 2}
    )


def test_every_benchmark_is_explained_in_the_docs():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert BEGIN in (ROOT / "docs" / "benchmark-results.md").read_text()
    assert [name for name in BENCHMARKS if f"### {name}\n" not in page] == []
