"""A report as a page: text is text, it asks for nothing, stays small, and always comes."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.goodput import Goodput, Point
from launcher.runs.page import MOST_MOMENTS, render_page
from launcher.runs.particulars import Particulars
from launcher.runs.plot import draw_course, draw_lives
from launcher.runs.report import NodeReport, Postmortem
from launcher.runs.timeline import Moment
from tests.launcher.runner import Runner
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


OUTER = """<!doctype html><iframe src="page.html" width="{width}" height="600"></iframe><p></p>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const seen = [page.title, page.documentElement.scrollWidth];
  document.querySelector("p").textContent = "seen " + seen.join(" ");
}}</script>"""


@pytest.mark.chromium
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_runs_nothing_of_it_and_shows_it_within_a_phone_and_a_screen(
    tmp_path: Path, width: int
) -> None:
    evil = (
        "</pre><script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\">"
    )
    long = replace(TOLD, run_id="digits", job=evil + "x" * 300, detail=evil, restarts={evil: 1})
    end = worker_end(exception=evil, log="/a" * 200, log_tail=("y" * 400, evil))
    more = replace(MORE, settings={"env.NAME": evil}, failures=[(end, evil)], diff="z" * 900)
    side = replace(more, told=long, lives=draw_lives(long), verdict=evil)
    pictures = [draw_course({"a": GOODPUT, "b": GOODPUT}, by=by) for by in ("time", "samples")]
    (tmp_path / "page.html").write_text(render_page([side, side], pictures))
    (tmp_path / "outer.html").write_text(OUTER.format(width=width))
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/outer.html"
        done = subprocess.run(
            [*CHROMIUM, f"--user-data-dir={tmp_path}/profile", "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        server.shutdown()
    seen = re.search(r"seen (.*) (\d+)<", done.stdout)
    assert seen, done.stdout + done.stderr
    assert seen[1] == "digits and digits"
    assert int(seen[2]) <= width


CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=9000")
SCRIPT = """
import os, sys
from fabric_train.ledger import Loaded, TrainStarted, open_ledger
from fabric_train.worker_env import parse_worker_env
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=float(sys.argv[1]))
ledger = open_ledger(parse_worker_env(os.environ))
ledger.write(TrainStarted(world_size=1, generation=None))
ledger.write(Loaded(step=0))
for step in range(1, 4):
    optimizer.step()
    ledger.on_step(step, 8, lambda: 2.0)
ledger.on_trained(3, 1.0)
raise ValueError("loss is nan <script>alert(1)</script>")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Two runs that failed, with other learning rates."""
    runner = Runner(tmp_path_factory.mktemp("a folder"))
    runner.env["PYTHONPATH"] = os.getcwd()
    for name, rate in (("first", "0.5"), ("second", "0.25")):
        runner.write(
            SCRIPT, f"name: {name}\nstart: fork\nnproc_per_node: 1\nenv: {{RATE: '{rate}'}}\n"
        )
        runner("run", "job.yaml", "--on", "local", "--", rate)
    return runner


def page_of(runs: Runner, *words: str) -> str:
    done = runs("report", *words, "--html", "my page.html")
    assert done.returncode == 0, done.stderr
    return (runs.folder / "my page.html").read_text()


def test_the_command_writes_the_page_of_a_run_or_of_two_and_an_index(runs: Runner) -> None:
    old, new = sorted(runs.run_ids())
    page = page_of(runs, old)
    assert "nan-loss, certain" in page
    assert "ValueError: loss is nan &lt;script&gt;" in page
    assert "train.py&quot;, line" in page  # the stack
    assert ">learning rate<" in page
    for told in ("<td>torch</td>", "<td>CPUs</td>", "<td>env.RATE</td><td>0.5</td>"):
        assert told in page, told
    both = page_of(runs, old, "--with", new)
    assert "<td>env.RATE</td><td>0.5</td><td>0.25</td>" in both
    assert both.count("nan-loss, certain") == 2
    runs("report", old, "--html", f"runs/{old}/report.html")
    runs("ps", "--html", "runs/index.html")
    index = (runs.folder / "runs/index.html").read_text()
    assert f'<a href="{old}/report.html">{old}</a>' in index
    assert f"<td>{new}</td>" in index
    refused = runs("report", "--html", "absent/page.html")
    assert (refused.returncode, "cannot be written" in refused.stderr) == (2, True)
    assert runs("report", "--with", old).returncode == 2


def lose_plan(run: Path) -> None:
    (run / "plan.json").unlink()
    shutil.rmtree(run / ".kept")


def change_plan(run: Path) -> None:
    shutil.rmtree(run / ".kept")
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "schema": 1}))


def lose_most(run: Path) -> None:
    for name in (".kept", "ledger", "nodes"):
        shutil.rmtree(run / name)
    for name in ("submitted.json", "job.json", "launcher.json"):
        (run / name).unlink()


def tear(run: Path) -> None:
    for path in (run / "ledger").iterdir():
        path.write_bytes(path.read_bytes() + b'{"event": "progress", "at": 1e\n\x00\xff\n"x"\n')


def jump(run: Path) -> None:
    for path in (run / "ledger").glob("agent-*"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        later = [{**event, "at": event["at"] + 86_400} for event in events[2:]]
        path.write_text("\n".join(map(json.dumps, [*events[:2], *later])))


def write_nonsense(run: Path) -> None:
    (path,) = (run / "ledger").glob("train-*")
    events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    odd = [{"step": "many"}, {"step": None}, {"loss": {}}, {"lr": [1]}, {"samples": "1"}]
    events += [{**events[-1], **one} for one in odd]
    path.write_text("\n".join(map(json.dumps, events)))


def fill(run: Path) -> None:
    for path in run.glob("nodes/*/*/attempt-*/rank-*/std*"):
        os.truncate(path, 10 << 30)  # sparse: it takes no room


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_plan, "plan.json is not the plan of a run"),
        pytest.param(change_plan, "schema 2", marks=pytest.mark.slow),
        (lose_most, "submitted.json: times count from the first event"),
        pytest.param(tear, "lines of the ledger are torn", marks=pytest.mark.slow),
        pytest.param(jump, "jumped by +86400 s", marks=pytest.mark.slow),
        (write_nonsense, ">learning rate<"),
        pytest.param(fill, "nan-loss", marks=pytest.mark.slow),
    ],
)
def test_whatever_is_left_of_a_run_makes_a_page_that_says_what_is_missing(
    runs: Runner, damage: Any, told: str
) -> None:
    run_id = sorted(runs.run_ids())[0]
    copy = runs.folder / "runs" / "damaged-20250101-000000-aaaa"
    shutil.copytree(runs.folder / "runs" / run_id, copy, symlinks=True)
    try:
        damage(copy)
        page = page_of(runs, copy.name)
        assert told in page
        assert "<script" not in page
        assert copy.name in page
    finally:
        shutil.rmtree(copy)
