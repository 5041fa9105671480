"""``launcher top``: what it reads of a run, and what it shows in a terminal."""

import asyncio
import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.widgets import DataTable, Input, ProgressBar, Static

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.runs.folder import RunFolder
from launcher.runs.goodput import Goodput, Point
from launcher.runs.heals import Heal
from launcher.runs.report import NodeReport, Postmortem
from launcher.runs.timeline import Moment
from launcher.screen import app
from launcher.screen.snapshot import (
    NodeRow,
    RunSnapshot,
    read_last_line,
    render_snapshot,
    render_training,
)
from tests.launcher.runner import Runner
from tests.launcher.vitals import GPU, vitals
from tests.waiting import StoppedClock, wait_until

NODE = NodeReport(
    node_index=0,
    incarnation=0,
    attempts=1,
    cause=None,
    exit_code=None,
    detail="",
    phases_s={},
    state="running",
)
ROW = NodeRow(
    report=NODE,
    host="",
    vitals=vitals(
        steps={"0": 9, "1": 7},
        memory_bytes=3 << 30,
        memory_limit_bytes=int(7.6 * 2**30),
        gpus=(replace(GPU, share=0.9, memory_bytes=3, memory_limit_bytes=4, temperature_c=61),),
    ),
    seen_s=2.0,
    last_line="step 7",
)
POINTS = [Point(10.0 * n, 100 * n, 3200 * n, 0.25, 0.1, 1234.4, 2) for n in (5, 6, 7)]
TOLD = Postmortem(
    run_id="digits-1",
    job="digits",
    target="local",
    engine="agent",
    state="running",
    cause=None,
    fault=None,
    detail="",
    exit_code=None,
    attempts=1,
    duration_s=75.0,
    failure=None,
    restarts={"exit": 2},
    nodes=[NODE],
    clock_offsets_s={},
    phases_s={},
    goodput=Goodput(
        wall_s=80.0,
        seconds={"productive": 70.0},
        starts=1,
        lost_steps=0,
        world=[],
        points=POINTS,
        failures=[],
        saves=[(71.0, 0)],
        until=1000,
    ),
    timeline=[Moment(after_s=1.0, node_index=0, incarnation=0, text="agent started")],
    folder="",
    heals=[Heal(at=1.0, cause="lost", step=9, num_nodes=2, paused_s=0.731, what="node 1 is lost")],
)
SEEN = RunSnapshot(report=TOLD, nodes=[ROW])
STEPS = """
import time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    optimizer.step()
    print("one more step", flush=True)
    time.sleep(0.1)
"""


def test_a_run_is_told_in_columns():
    assert render_snapshot(SEEN).splitlines() == [
        "digits-1: RUNNING on local (75.0 s)",
        "step 700/1000  loss 0.25  1,234 samples/s  30 s left  saved 4 s ago  goodput 87.5%  "
        "restarts: exit 2  healed without a restart once, paused 0.73 s",
        "NODE  STATE    SEEN  STEP  CPU  MEMORY     GPU           LAST LINE",
        "0.0   running  2 s   7     50%  3.0/8 GiB  90% 75% 61°C  step 7",
    ]


def test_the_time_left_follows_the_pace_of_the_last_twenty_points():
    points = [POINTS[0]._replace(after_s=n * 10.0, step=n) for n in range(20)]
    slow = POINTS[0]._replace(after_s=-9e9, step=-1)
    told = replace(TOLD.goodput, points=[slow, *points], until=31) if TOLD.goodput else None
    assert "step 19/31  loss 0.25  1,234 samples/s  2 min left" in render_training(
        replace(TOLD, goodput=told)
    )
    over = replace(TOLD, goodput=told, cause="completed")
    assert render_training(over).endswith(
        "samples/s  goodput 87.5%  restarts: exit 2  healed without a restart once, paused 0.73 s"
    )
    assert render_training(replace(TOLD, goodput=None, restarts={}, heals=[])) == ""


def node(**changes: Any) -> NodeRow:
    return replace(ROW, report=replace(NODE, **changes))


@pytest.mark.parametrize(
    ("row", "trouble"),
    [
        (node(state="missing"), 0),
        (node(cause="out-of-memory", exit_code=137), 0),
        (replace(ROW, seen_s=3 * protocol.VITALS_S + 0.1), 1),
        (replace(ROW, seen_s=3 * protocol.VITALS_S), 3),
        (node(state="pending"), 2),
        (ROW, 3),
        (node(cause="completed", exit_code=0), 4),
    ],
)
def test_nodes_with_trouble_come_first(row, trouble):
    assert row.trouble == trouble


def test_the_last_line_is_what_a_bar_shows_now_without_control_characters(tmp_path):
    path = tmp_path / "stderr"
    path.write_text("epoch 1\n 10%\r \x1b[31m20%\x07\x1b[0m\r\n\n")
    assert read_last_line([tmp_path / "stdout", path]) == "20%\\x07"


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes rows, and what to do with a screen that shows them."""

    def watch(rows: Sequence[NodeRow], do: Callable[[app.RunScreen, Any], Any]) -> None:
        monkeypatch.setattr(app, "read_snapshot", lambda run, now: replace(SEEN, nodes=rows))
        # The screen runs in this process, which the tests after it share.
        monkeypatch.setattr(app.os, "nice", lambda by: by)

        async def look() -> None:
            shown = app.RunScreen(RunFolder(tmp_path / "digits-1"), 60.0)
            async with shown.run_test(size=(80, 24)) as pilot:
                while not shown.query_one(DataTable).row_count:  # Ended by the limit of the test.
                    await pilot.pause(0.05)
                await do(shown, pilot)

        asyncio.run(look())

    return watch


def cells_of(screen: app.RunScreen, row: int) -> list[str]:
    return [str(cell) for cell in screen.query_one(DataTable).get_row_at(row)]


def test_rows_are_drawn_anew_and_filtered_by_host_and_state(watch):
    rows = [node(node_index=0), replace(node(node_index=1), host="gpu1")]

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        table, words = screen.query_one(DataTable), screen.query_one(Input)
        assert (table.row_count, words.display, screen.query_one(ProgressBar).display) == (2, 0, 1)
        screen.show(replace(SEEN, nodes=[replace(row, last_line="step 8") for row in rows]))
        assert [cells_of(screen, at)[-1] for at in (0, 1)] == ["step 8"] * 2
        await pilot.press("slash", *"gpu1")
        await pilot.pause()
        assert (table.row_count, words.display, cells_of(screen, 0)[0]) == (1, True, "1.0 gpu1")
        await pilot.press("enter")
        assert not words.display

    watch(rows, look)


def test_a_run_is_stopped_by_the_second_x_within_ten_seconds(watch, monkeypatch):
    clock = StoppedClock(1000.0)
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=clock, time=time.time))
    stopped = threading.Event()

    def stop(run: RunFolder, grace_s: float | None) -> str:
        stopped.set()
        raise InputError("has ended", "nothing")

    monkeypatch.setattr(app, "stop_run", stop)

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        for pause_s in (0.0, 10.0, 9.9):
            assert not stopped.is_set()
            clock.now += pause_s
            await pilot.press("x")
            await pilot.pause()
        await screen.workers.wait_for_complete()
        await pilot.pause()
        assert stopped.is_set()
        assert "error: has ended" in str(screen.screen.query_one("#text", Static).render())

    watch([ROW], look)


def test_a_page_follows_what_is_written_unless_one_has_gone_back(watch):
    lines = ["a line"] * 100

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        screen.push_screen(app.Page("log", lambda: "\n".join(lines), every_s=0.02))
        await pilot.pause()
        area = screen.screen.query_one(VerticalScroll)

        async def see(from_end: int, least: int) -> None:
            """Waits until so many lines of more than ``least`` lie below what is seen."""
            deadline = time.monotonic() + 20
            while area.max_scroll_y - area.scroll_y != from_end or area.max_scroll_y < least:
                assert time.monotonic() < deadline, (area.scroll_y, area.max_scroll_y)
                await pilot.pause(0.02)

        await see(0, least=70)
        lines.extend(["a line"] * 20)
        await see(0, least=90)
        await pilot.press("home")
        end = int(area.max_scroll_y)
        await see(end, least=90)
        lines.extend(["a line"] * 20)
        await see(end + 20, least=end + 20)
        await pilot.press("end")
        await see(0, least=end + 20)
        lines.extend(["a line"] * 20)
        await see(0, least=end + 40)

    watch([ROW], look)


def test_what_a_worker_prints_is_no_markup(watch):
    line = "[info] [/b] step"

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        assert cells_of(screen, 0)[-1] == line
        await pilot.pause()
        strips = screen.query_one(DataTable).render_lines(Region(0, 0, 200, 2))
        assert line in strips[1].text

    watch([replace(ROW, last_line=line)], look)


def test_a_page_that_is_left_while_it_reads_ends_nothing(watch):
    read, left = threading.Event(), threading.Event()

    def answer() -> str:
        read.set()
        left.wait()  # Ended by the test.
        return "late"

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        screen.push_screen(app.Page("slow", answer))
        while not read.is_set():
            await pilot.pause(0.01)
        await pilot.press("escape")
        left.set()
        await screen.workers.wait_for_complete()
        assert cells_of(screen, 0)[0] == "0.0"

    watch([ROW], look)


def test_without_a_terminal_a_run_is_told_once(tmp_path):
    runner = Runner(tmp_path)
    runner.write("print('hello')")
    runner("run", "job.yaml", "--on", "local")
    done = runner("top")
    assert "SUCCEEDED on local (completed" in done.stdout
    assert "hello" in done.stdout
    (row,) = json.loads(runner("top", "--json").stdout)["nodes"]
    assert (row["report"]["cause"], row["seen_s"]) == ("completed", None)
    (tmp_path / "runs/latest/ledger/agent-0-0.jsonl").write_text('{"torn\n\x00')
    assert runner("top").returncode == 0


class Tmux:
    """A terminal of 80 columns and 24 lines, in which one command runs."""

    def __init__(self, folder: Path, command: list[str], env: dict[str, str]) -> None:
        self._tmux = ("tmux", "-S", str(folder / "tmux"))
        command_line = f"cd {shlex.quote(str(folder))} && exec {shlex.join(command)}"
        self("new-session", "-d", "-x", "80", "-y", "24", command_line, env=env)

    def __call__(self, *words: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run((*self._tmux, *words), env=env, capture_output=True, text=True)
        return done.stdout

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.shown(), self.shown)

    def close_page(self) -> None:
        # A notice hides it for a while. The next key would then come right behind the escape, and
        # terminals take the two for one key.
        self.wait_for("escape: back")
        self("send-keys", "Escape")
        wait_until(lambda: "escape: back" not in self.shown(), self.shown)

    def shown(self) -> str:
        return self("capture-pane", "-p")


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    folder = tmp_path / "a folder"
    folder.mkdir()
    runner = Runner(folder)
    yield runner
    runner("stop", "--grace", "0")
