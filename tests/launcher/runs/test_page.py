"""A report as a page: it shows all text as text, asks for nothing, and stays small."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.runs.goodput import Goodput
from launcher.runs.outcome import FailureReport
from launcher.runs.page import MOST_MOMENTS, render_page
from launcher.runs.plot import draw_svg
from launcher.runs.report import NodeReport, Postmortem
from launcher.runs.timeline import Moment
from tests.launcher.runner import Runner
from tests.launcher.worker_ends import worker_end

EVIL = "</pre><script>alert(1)</script><img src=http://evil/x onerror=alert(2)>\x1b]0;title\x07"
TOLD = Postmortem(
    run_id="digits-1",
    job=EVIL,
    target="local",
    engine="agent",
    state="failed",
    reason="training-failed",
    fault="training",
    detail=EVIL,
    exit_code=1,
    attempts=1,
    duration_s=30.0,
    failure=FailureReport(
        first=worker_end(exception=EVIL, log="rank-0/stderr", log_tail=(EVIL,)),
        collateral=(),
        console_tail=(),
    ),
    restarts={"failure": 2},
    nodes=[
        NodeReport(
            node_index=0,
            incarnation=0,
            attempts=3,
            reason="training-failed",
            exit_code=1,
            detail=EVIL,
            phases_s={"running": 20.0},
            state="",
        )
    ],
    clock_offsets_s={},
    phases_s={"running": 20.0},
    goodput=Goodput(
        wall_s=30.0,
        seconds={"productive": 24.0, "idle": 6.0},
        starts=3,
        lost_steps=10,
        world=[(0.0, 0), (1.0, 2), (9.0, 0)],
        loss=[(2.0, 5, 2.0), (8.0, 20, 1.0), (12.0, 10, 1.5)],
        failures=[9.0],
    ),
    timeline=[Moment(after_s=1.0, node_index=0, incarnation=0, text=EVIL)],
    folder="/runs/digits-1",
)


def test_what_logs_names_and_errors_hold_is_shown_and_never_run() -> None:
    page = render_page(TOLD, f"digits-1: {EVIL}", draw_svg(TOLD))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\x1b]0;title\\x07" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page


def test_it_asks_for_nothing_from_elsewhere() -> None:
    told = replace(TOLD, detail="", job="j", failure=None, nodes=[], timeline=[])
    page = render_page(told, "", draw_svg(told))
    asked = re.findall(r"(?:src|href)=[\"']?(?!#)([^\"' >]+)|url\((?!#)([^)]+)\)|@import", page)
    assert asked == []


def test_a_day_of_64_nodes_is_below_3_mb() -> None:
    assert TOLD.goodput
    loss = [(float(at), at, 1.0 / (1 + at)) for at in range(86_400)]
    moments = [
        Moment(after_s=float(at), node_index=at % 64, incarnation=at // 64, text="workers started")
        for at in range(20_000)
    ]
    told = replace(TOLD, timeline=moments, goodput=replace(TOLD.goodput, loss=loss, wall_s=86_400))
    page = render_page(told, "", draw_svg(told))
    assert len(page) < 3 << 20
    assert f"{20_000 - MOST_MOMENTS} earlier events are left out" in page


@pytest.mark.parametrize("has_ledger", [True, False])
def test_without_a_picture_it_says_why(monkeypatch: pytest.MonkeyPatch, has_ledger: bool) -> None:
    if has_ledger:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = TOLD if has_ledger else replace(TOLD, goodput=None, phases_s={})
    page = render_page(told, "", draw_svg(told))
    assert "pip install" in page if has_ledger else "wrote no ledger" in page


def test_the_command_writes_the_page_of_a_failed_run_with_its_verdict(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.write("raise ValueError('loss is nan')", "name: tiny\nnproc_per_node: 1\n")
    runner("run", "job.yaml", "--on", "local")
    done = runner("report", "latest", "--html", "my page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "my page.html").read_text()
    assert "nan-loss, certain" in page
    assert "ValueError: loss is nan" in page
    refused = runner("report", "latest", "--html", "absent/page.html")
    assert (refused.returncode, "cannot be written" in refused.stderr) == (2, True)
