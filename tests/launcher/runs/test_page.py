"""A report as a page: text is text, it asks for nothing, stays small, and always comes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from launcher.runs.goodput import Goodput, Point
from launcher.runs.page import MOST_MOMENTS, render_page
from launcher.runs.particulars import Particulars
from launcher.runs.plot import draw_course, draw_lives
from launcher.runs.report import NodeReport, Postmortem
from launcher.runs.timeline import Moment
from tests.launcher.worker_ends import worker_end

EVIL = "</pre><script>alert(1)</script><img src=http://evil/x onerror=alert(2)>\x1b]0;title\x07"


def point(at: float, step: int, loss: float | None) -> Point:
    return Point(at, step, 32 * step, loss, 0.1, 320.0, 2)


POINTS = [point(2.0, 5, 2.0), point(8.0, 20, 1.0), point(12.0, 10, 1.5), point(29.0, 60, None)]


GOODPUT = Goodput(
    wall_s=30.0,
    seconds={"productive": 24.0, "idle": 6.0},
    starts=3,
    lost_steps=10,
    world=[(0.0, 0), (1.0, 2), (9.0, 0)],
    points=POINTS,
    failures=[9.0],
    saves=[(7.0, 0)],
)


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
    failure=None,
    restarts={EVIL: 2},
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
    goodput=GOODPUT,
    timeline=[
        Moment(after_s=1.0, node_index=0, incarnation=0, text=EVIL),
        Moment(after_s=9.0, node_index=0, incarnation=0, text="restart", kind="restart"),
        Moment(after_s=9.0, node_index=0, incarnation=1, text="again"),
    ],
    folder="/runs/digits-1",
)


END = worker_end(exception=EVIL, log="rank-0/stderr", log_tail=(EVIL,))


MORE = Particulars(
    told=TOLD,
    settings={"env.NAME": EVIL},
    facts={"torch": EVIL},
    diff=EVIL,
    failures=[(END, EVIL)],
    missing=[EVIL],
)


def draw(told: Postmortem, more: Particulars = MORE) -> str:
    courses = {told.run_id: told.goodput} if told.goodput else {}
    pictures = [draw_course(courses, by=by) for by in ("time", "samples")]
    return render_page([replace(more, told=told, lives=draw_lives(told))], pictures)


def test_what_logs_names_and_errors_hold_is_shown_and_never_run() -> None:
    evil = replace(TOLD, run_id=EVIL)
    side = replace(MORE, told=evil, verdict=f"digits-1: {EVIL}", lives=draw_lives(evil))
    pictures = [draw_course({EVIL: GOODPUT, "other": GOODPUT}, by="time")]
    page = render_page([side, side], pictures)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\x1b]0;title\\x07" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page


def test_it_asks_for_nothing_from_elsewhere() -> None:
    page = draw(
        replace(TOLD, detail="", job="j", nodes=[], timeline=[], restarts={}),
        Particulars(told=TOLD),
    )
    asked = re.findall(r"(?:src|href)=[\"']?(?!#)([^\"' >]+)|url\((?!#)([^)]+)\)|@import", page)
    assert asked == []


def test_it_draws_loss_rate_throughput_workers_lives_and_marks() -> None:
    page = draw(TOLD)
    for told in ("training loss", "learning rate", "samples/s", "workers", "samples seen"):
        assert f">{told}<" in page, told
    assert "fault (1)" in page  # the first life of node 0, which came again
    assert "restart (1)" in page
    assert "checkpoint (1)" in page


def test_a_day_of_64_nodes_is_below_3_mb() -> None:
    points = [point(float(at), at, 1.0 / (1 + at)) for at in range(1, 86_400)]
    moments = [
        Moment(after_s=4.0 * at, node_index=at % 64, incarnation=at // 640, text="x", kind="fault")
        for at in range(20_000)
    ]
    saves = [(60.0 * at, 0) for at in range(1440)]
    day = replace(GOODPUT, points=points, saves=saves, wall_s=86_400)
    end = (worker_end(log_tail=("x" * 500,) * 12), "y" * 20_000)
    more = replace(MORE, failures=[end] * 64, diff="d" * (256 << 10))
    page = draw(replace(TOLD, timeline=moments, goodput=day, duration_s=86_400.0), more)
    assert len(page) < 3 << 20
    assert f"{20_000 - MOST_MOMENTS} earlier events" in page


@pytest.mark.parametrize("has_ledger", [True, False])
def test_without_a_picture_it_says_why(monkeypatch: pytest.MonkeyPatch, has_ledger: bool) -> None:
    if has_ledger:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = draw(TOLD if has_ledger else replace(TOLD, goodput=None, phases_s={}))
    assert "pip install" in page if has_ledger else "reported no steps" in page
