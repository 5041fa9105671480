"""The program as a whole, and that the peers do the same work. Times are never asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import record
from benchmarks.catalog import BENCHMARKS
from benchmarks.checking import check_manifests
from benchmarks.command_line import measure_render
from benchmarks.commands import ROOT, find_torchrun, run
from benchmarks.manifests import KINDS, plan_and_render_kind
from benchmarks.measure import BenchmarkError, Measurement, Row
from benchmarks.plan import plan_and_render
from benchmarks.pods import read_memory
from benchmarks.start import start_launcher, start_torchrun
from benchmarks.step import OURS, THEIRS, read_metrics
from benchmarks.table import BEGIN, END


def measure_nothing(repetitions: int) -> Iterator[Row]:
    samples_s = (1.0,) * repetitions
    yield Row(benchmark="nothing", what="none", ours=Measurement(samples_s=samples_s))


def measure_failing(repetitions: int) -> Iterator[Row]:
    raise BenchmarkError("no torch; fix: make setup")
    yield


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        program, "BENCHMARKS", {"nothing": measure_nothing, "failing": measure_failing}
    )


def test_a_report_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    assert program.main(["nothing", "--repetitions", "2", "--json", str(file)]) == 0
    assert "nothing: none  1.00 s (1.00 to 1.00)" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["command"] == "python -m benchmarks nothing --repetitions 2"
    assert str(tmp_path) not in file.read_text()


def test_a_benchmark_that_cannot_run_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 1
    shown = capsys.readouterr()
    assert "nothing: none" in shown.out
    assert "error: failing cannot run: no torch; fix: make setup" in shown.err


@pytest.mark.parametrize("arguments", [["strat"], ["--repetitions", "0"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(arguments)


def test_results_are_put_into_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    monkeypatch.setattr(record, "PAGE", page)
    file = tmp_path / "report.json"
    program.main(["nothing", "--json", str(file)])
    assert record.main([str(file)]) == 0
    line = "| nothing: none | 1.00 s (1.00 to 1.00) |"
    assert page.read_text().count(line) == 1
    assert record.main([str(file), str(file)]) == 0
    assert page.read_text().count(line) == 2


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    file.write_text("{}")
    assert record.main([str(file)]) == 2
    assert "is not a report" in capsys.readouterr().err


def test_every_benchmark_is_explained_in_the_docs() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert BEGIN in page
    assert [name for name in BENCHMARKS if f"### {name}\n" not in page] == []


def test_without_torchx_its_row_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.command_line.find_torchx", lambda environ: None)
    monkeypatch.setattr(
        "benchmarks.command_line.find_launcher", lambda: (sys.executable, "-c", "pass")
    )
    (row,) = measure_render(1)
    assert row.theirs is None
    assert row.ok is None
    assert "pip install torchx" in row.note


def test_checking_is_measured_with_every_file_read() -> None:
    assert check_manifests(2) > 0


def test_planning_is_measured_up_to_the_rendered_text() -> None:
    assert plan_and_render(3) > 0
    assert all(plan_and_render_kind(kind, 3) > 0 for kind in KINDS)


@pytest.mark.slow  # make bench is its user, and takes longer
@pytest.mark.parametrize("start", [start_launcher, start_torchrun])
def test_the_start_is_measured_up_to_the_first_step(start: Callable[[int], float]) -> None:
    assert start(1) > 0


@pytest.mark.slow  # thirty seconds, and neither side changes often
def test_the_peer_in_raw_ddp_does_the_same_work(tmp_path: Path) -> None:
    losses = []
    for module in (OURS, THEIRS):
        run_dir = tmp_path / module
        run_dir.mkdir()
        options = ("--epochs=2", "--virtual_shards=4")
        job = ("--standalone", "--nproc-per-node=2", "-m", module, *options)
        run((*find_torchrun(), *job), {"RUN_DIR": str(run_dir)})
        metrics = read_metrics(run_dir)
        assert metrics["median_step_s"] > 0
        losses.append(metrics["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("side", ["launcher", "peer"])
def test_both_sides_follow_every_pod(side: str) -> None:
    pytest.importorskip("kubernetes")
    assert read_memory(side, pods=2, lines=3) > 1


def test_the_limit_reaches_those_that_go_on_until_they_are_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def measure(repetitions: int, limit: int = 30) -> Iterator[Row]:
        asked.append((repetitions, limit))
        return measure_nothing(repetitions)

    monkeypatch.setattr(program, "BENCHMARKS", {"nothing": measure_nothing, "until": measure})
    monkeypatch.setattr(program, "UNTIL_SURE", {"until": measure})
    file = tmp_path / "report.json"
    common = ["until", "--repetitions", "2", "--json", str(file)]
    assert program.main([*common, "--limit", "7"]) == 0
    assert json.loads(file.read_text())["command"].endswith("until --repetitions 2 --limit 7")
    assert program.main(common) == 0
    assert asked == [(2, 7), (2, 30)]
