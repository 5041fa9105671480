"""A report as a page: text is text, it asks for nothing, stays small, and always comes."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from launcher.runs.goodput import Goodput, Point
from launcher.runs.heals import Heal
from launcher.runs.page import MOST_MOMENTS, render_index, render_page
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
    cause="training-failed",
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
            cause="training-failed",
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
    report=TOLD,
    settings={"env.NAME": EVIL},
    facts={"torch": EVIL},
    diff=EVIL,
    failures=[(END, EVIL)],
    missing=[EVIL],
)


def draw(told: Postmortem, more: Particulars = MORE) -> str:
    courses = {told.run_id: told.goodput} if told.goodput else {}
    pictures = [draw_course(courses, by=by) for by in ("time", "samples")]
    return render_page([replace(more, report=told, lives=draw_lives(told))], pictures)


def lines_of(page: str) -> str:
    """A page for a golden: without its style, and with a line for each row and block."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return re.sub(r"(?<!^)(?=<(?:tr|h1|h2|p|pre|table|div|details|body)\b)", "\n", page)


def test_what_logs_names_and_errors_hold_is_shown_and_never_run():
    evil = replace(TOLD, run_id=EVIL)
    side = replace(MORE, report=evil, verdict=f"digits-1: {EVIL}", lives=draw_lives(evil))
    pictures = [draw_course({EVIL: GOODPUT, "other": GOODPUT}, by="time")]
    page = render_page([side, side], pictures)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\x1b]0;title\\x07" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page


def test_it_asks_for_nothing_from_elsewhere():
    page = draw(
        replace(TOLD, detail="", job="j", nodes=[], timeline=[], restarts={}),
        Particulars(report=TOLD),
    )
    asked = re.findall(r"(?:src|href)=[\"']?(?!#)([^\"' >]+)|url\((?!#)([^)]+)\)|@import", page)
    assert asked == []


def test_two_runs_and_an_index_have_their_pages(expect_golden):
    quiet = replace(
        TOLD, run_id="other", state="running", cause=None, fault=None, detail="", exit_code=None,
        goodput=None, restarts={}, nodes=[], timeline=[], folder="",
    )  # fmt: skip
    heal = Heal(at=1.0, cause="lost", step=9, num_nodes=2, paused_s=0.731, what="node 1 is lost")
    end = worker_end(exception="ValueError: boom", log="rank-1/stderr", log_tail=("a", "boom"))
    failures = [(end, "a\nboom"), (replace(end, log_tail=()), "")]
    one = Particulars(
        report=replace(TOLD, job="j", detail="", restarts={"hang": 2}, nodes=[], heals=[heal]),
        settings={"env.NAME": "1", "same": "2"}, facts={"torch": "2.13.0"}, failures=failures,
        lives="no picture", verdict="a\n  fix: b",
    )  # fmt: skip
    other = Particulars(report=quiet, settings={"same": "2", "own": "<"}, missing=["plan.json"])
    rows = [("run", "state"), ("a<b", "failed"), ("c", "x"), ("d", "c")]
    alike = replace(other, report=replace(quiet, run_id="third", phases_s={}))
    pages = {
        "of two": render_page([one, other], ["<svg>1</svg>", "why not"]),
        "of two that are alike": render_page([other, replace(alike, missing=())], []),
        "an index": render_index(rows, ["", "c/r.html?a&b", "d.html"], "/the runs"),
        "without runs": render_index(rows[:1], [], "/r"),
    }
    shown = (f"== {name}\n{lines_of(page)}" for name, page in pages.items())
    expect_golden("pages.html", "\n".join(shown))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """All figures that are drawn."""
    seen, save = list[Figure](), Figure.savefig

    def keep(figure: Figure, *given: Any, **how: Any) -> None:
        seen.append(figure)
        save(figure, *given, **how)

    monkeypatch.setattr(Figure, "savefig", keep)
    return seen


def tell(pictures: Mapping[str, str], figures: Iterable[Figure]) -> str:
    """What is written in each picture, and what stands where in its panels."""
    told = []
    for (name, picture), figure in zip(pictures.items(), figures, strict=True):
        assert picture.startswith("<svg"), picture
        texts = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))
        told.append(f"{name}, {figure.get_size_inches().round(2)}: {texts}\n")
        for axis in figure.axes:
            told.append(f"  panel to {axis.get_xlim()[1]:.4g}, {axis.get_ylim()[1]:.4g}\n")
            for line in axis.lines:
                places = [f"{x:.4g},{y:.4g}" for x, y in line.get_xydata()]
                shown = [*places[:6], f"... {len(places)}", *places[-1:]][: len(places) + 1]
                look = f"{to_hex(line.get_color())} {line.get_marker()} {line.get_drawstyle()}"
                told.append(f"    {look} {line.get_label()}: {' '.join(shown)}\n")
            for bar in axis.patches:
                place = f"{bar.get_x():.4g} to {bar.get_x() + bar.get_width():.4g}"
                colour = to_hex(bar.get_facecolor())
                told.append(f"    bar {place}, {bar.get_y():.4g} {bar.get_height():.4g} {colour}\n")
    return "".join(told)


def test_pictures_show_the_course_of_each_run(expect_golden, figures):
    other = replace(GOODPUT, wall_s=60.0, failures=[9.0, 11.0, 99.0])
    bare = replace(GOODPUT, points=[p._replace(samples=0, lr=None) for p in POINTS])
    pictures = {
        "by time": draw_course({"a": GOODPUT}, by="time"),
        "by samples, of two": draw_course({"a$b": GOODPUT, "c": other}, by="samples"),
        "by steps": draw_course({"a": bare}, by="samples"),
    }
    expect_golden("courses.txt", tell(pictures, figures))
    assert draw_course({"a": replace(GOODPUT, points=[])}, by="time").startswith("No picture: ")
    assert draw_course({"a": GOODPUT}, by="time") == pictures["by time"], "no date, no chance"


def test_pictures_show_the_lives_of_nodes_with_their_marks(expect_golden, figures):
    moments = [
        Moment(after_s=at, node_index=node, incarnation=life, text="x", kind=kind)
        for at, node, life, kind in (
            (1.0, 0, 0, ""), (3.0, 0, 0, "heal"), (9.0, 0, 0, "restart"),
            (5.0, 64, 0, "fault"), (2.0, 1, 0, "fault"),
            (8.0, 1, 0, ""), (12.0, 1, 1, ""), (50.0, 1, 1, "fault"),
        )
    ]  # fmt: skip
    told = replace(TOLD, timeline=moments)
    (node,) = TOLD.nodes
    lives = replace(node, node_index=1, incarnation=1, cause=None)
    goes_on = replace(told, cause=None, nodes=[lives, replace(lives, node_index=7)])
    pictures = {
        "ended": draw_lives(told),
        "goes on for minutes": draw_lives(replace(goes_on, duration_s=301.0, goodput=None)),
        "goes on for hours": draw_lives(replace(goes_on, duration_s=7201.0)),
        "of no time": draw_lives(replace(told, duration_s=0.0)),
    }
    expect_golden("lives.txt", tell(pictures, figures))
    assert draw_lives(replace(TOLD, timeline=[])) == ""


def test_a_day_of_64_nodes_is_below_3_mb():
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
def test_without_a_picture_it_says_why(monkeypatch, has_ledger):
    if has_ledger:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = draw(TOLD if has_ledger else replace(TOLD, goodput=None, phases_s={}))
    assert "pip install" in page if has_ledger else "reported no steps" in page
