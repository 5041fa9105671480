"""``launcher top``: what it reads of a run, and what it shows in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import DataTable

from launcher.runs.folder import RunFolder
from launcher.runs.timeline import Moment
from launcher.screen import app
from launcher.screen.snapshot import NodeRow, RunSnapshot, last_line, render_snapshot
from launcher.targets import process_table
from tests.launcher.runner import Runner
from tests.waiting import wait_until

ROW = NodeRow(
    node_index=0,
    incarnation=0,
    state="running",
    exit_code=None,
    detail="",
    host="",
    seen_s=2.0,
    steps=7,
    cpu_share=0.5,
    memory_bytes=3 << 30,
    memory_limit_bytes=8 << 30,
    gpus=({"share": 0.9, "memory_bytes": 3, "memory_limit_bytes": 4, "temperature_c": 61},),
    last_line="step 7",
)
SEEN = RunSnapshot(
    run_id="digits-1",
    state="running",
    reason="",
    target="local",
    elapsed_s=75.0,
    goodput=0.875,
    step=700,
    until=1000,
    loss=0.25,
    samples_per_s=1234.4,
    eta_s=30.0,
    saved_s=4.0,
    restarts={"exit": 2},
    nodes=[ROW],
    events=[Moment(after_s=1.0, node_index=0, incarnation=0, text="agent started")],
)
STEPS = """
import time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    optimizer.step()
    print("one more step", flush=True)
    time.sleep(0.1)
"""


def test_a_run_is_told_in_columns() -> None:
    assert render_snapshot(SEEN).splitlines() == [
        "digits-1: running on local, 1:15 min, goodput 87.5%; restarts: exit 2",
        "step 700/1000  loss 0.25  1,234 samples/s  0:30 min left  saved 0:04 min ago",
        "NODE  STATE    SEEN  STEP  CPU  MEMORY     GPU           LAST LINE",
        "0.0   running  2 s   7     50%  3.0/8 GiB  90% 75% 61°C  step 7",
    ]


def test_a_table_names_how_many_nodes_it_leaves_out() -> None:
    text = render_snapshot(replace(SEEN, nodes=[ROW] * 1000))
    assert len(text.splitlines()) == 54
    assert "and 950 more nodes" in text


@pytest.mark.parametrize(
    ("row", "trouble"),
    [
        (replace(ROW, state="missing"), 0),
        (replace(ROW, state="out-of-memory", exit_code=137), 0),
        (replace(ROW, seen_s=99.0), 1),
        (replace(ROW, state="pending"), 2),
        (ROW, 3),
        (replace(ROW, state="completed", exit_code=0), 4),
    ],
)
def test_nodes_with_trouble_come_first(row: NodeRow, trouble: int) -> None:
    assert row.trouble == trouble


def test_the_last_line_is_what_a_bar_shows_now_without_control_characters() -> None:
    assert last_line("epoch 1\n 10%\r 20%\x1b[0m\r\n\n") == "20%\\x1b[0m"


def test_a_thousand_nodes_are_shown_filtered_and_changed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [replace(ROW, node_index=index, host=f"gpu{index:04}") for index in range(1000)]
    lost = replace(rows[700], state="missing")
    monkeypatch.setattr(app, "read_snapshot", lambda run, now: replace(SEEN, nodes=rows))

    async def look() -> None:
        shown = app.RunScreen(RunFolder(tmp_path / "digits-1"), 60.0)
        async with shown.run_test(size=(80, 24)) as pilot:
            table = shown.query_one(DataTable)
            while table.row_count < 1000:  # Ended by the limit of the test.
                await pilot.pause(0.05)
            shown.show(replace(SEEN, nodes=[lost, *rows[:700], *rows[701:]]))
            assert table.get_row_at(0)[:2] == ["700.0 gpu0700", "missing"]
            await pilot.press("slash", *"gpu001", "enter")
            assert [row.value for row in table.rows] == [str(index) for index in range(10, 20)]

    asyncio.run(look())


def test_without_a_terminal_a_run_is_told_once(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.write("print('hello')")
    runner("run", "job.yaml", "--on", "local")
    done = runner("top")
    assert "succeeded (completed) on local" in done.stdout
    assert "hello" in done.stdout
    assert json.loads(runner("top", "--json").stdout)["nodes"][0]["state"] == "completed"
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


@pytest.mark.tmux
def test_a_terminal_shows_a_restart_the_stacks_and_the_log_and_ends_the_run(runner: Runner) -> None:
    runner.write(STEPS, "name: tiny\nnproc_per_node: 1\nnnodes: 2\nmax_restarts: 3\n")
    done = runner("run", "job.yaml", "--on", "local", "--detach")
    assert done.returncode == 0, done.stderr
    tmux = Tmux(runner.folder, runner.argv("top"), {**runner.env, "TERM": "xterm-256color"})
    try:
        tmux.wait_for("first step")
        tmux.wait_for("one more step")
        run_id = runner.run_ids()[0]
        workers = process_table.find(LAUNCHER_RUN_ID=run_id, RANK="1")
        os.kill(workers[-1], signal.SIGKILL)
        tmux.wait_for("; restarts: ")
        tmux("send-keys", "s")
        tmux.wait_for("train.py")
        tmux.close_page()
        tmux("send-keys", "l")
        tmux.wait_for("== stderr")
        tmux.close_page()
        tmux("send-keys", "x")
        tmux.wait_for("removes what is left")
        tmux("send-keys", "y")
        tmux.wait_for("nothing of it runs any more")
        tmux.close_page()
        tmux.wait_for("stopped (stop-requested)")
        tmux("send-keys", "q")
        wait_until(lambda: not tmux("list-sessions"))
    finally:
        tmux("kill-server")


@pytest.mark.tmux
def test_a_run_that_is_followed_live_ends_as_without_a_screen(runner: Runner) -> None:
    """Ctrl-C stops it within its grace, and the summary stands where the screen was."""
    runner.write(STEPS, "name: tiny\nnproc_per_node: 1\n")
    words = shlex.join(runner.argv("run", "job.yaml", "--on", "local", "--live"))
    command = ["sh", "-c", f"{words}; echo code $?; cat"]
    tmux = Tmux(runner.folder, command, {**runner.env, "TERM": "xterm-256color"})
    try:
        tmux.wait_for("one more step")
        assert "filter" in tmux.shown()
        tmux("send-keys", "C-c")
        tmux.wait_for("code 130")
        assert "STOPPED tiny-" in tmux.shown()
        assert runner.outcome["reason"] == "interrupted"
    finally:
        tmux("kill-server")


def test_live_without_a_terminal_is_a_plain_stream(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.write("print('hello')")
    done = runner("run", "job.yaml", "--on", "local", "--live")
    assert (done.returncode, done.stdout) == (0, "hello\n")
