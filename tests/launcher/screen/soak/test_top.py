"""``launcher top``: what it reads of a run, and what it shows in a terminal."""

from __future__ import annotations

import gc
import shlex
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import DataTable
from textual.widgets._data_table import RowRenderables

from launcher.screen import app
from tests.launcher.screen.test_top import ROW, SEEN, STEPS, Tmux, cells_of, node, runner, watch


def test_a_thousand_nodes_are_shown_filtered_and_changed_in_place(watch):
    rows = [replace(node(node_index=index), host=f"gpu{index:04}") for index in range(1000)]
    lost = replace(rows[700], told=replace(rows[700].told, state="missing"))

    async def look(screen: app.RunScreen, pilot: Any) -> None:
        screen.show(replace(SEEN, nodes=[lost, *rows[:700], *rows[701:]]))
        assert cells_of(screen, 0)[:2] == ["700.0 gpu0700", "missing"]
        await pilot.press("slash", *"gpu001", "enter")
        table = screen.query_one(DataTable)
        assert [row.value for row in table.rows] == [str(index) for index in range(10, 20)]

    watch(rows, look)


def test_a_screen_keeps_no_drawings_of_what_it_has_shown(watch):
    async def look(screen: app.RunScreen, pilot: Any) -> None:
        for number in range(20):
            screen.show(replace(SEEN, nodes=[replace(ROW, last_line=f"step {number}")]))
            await pilot.pause(0.02)
        gc.collect()
        assert sum(isinstance(one, RowRenderables) for one in gc.get_objects()) < 10

    watch([ROW], look)


@pytest.mark.tmux
def test_a_run_that_is_followed_live_ends_as_without_a_screen(runner):
    """Ctrl-C stops it within its grace, and the summary stands where the screen was."""
    runner.write(STEPS, "name: tiny\nnproc_per_node: 1\n")
    words = shlex.join(runner.argv("run", "job.yaml", "--on", "local", "--live"))
    command = ["sh", "-c", f"{words}; echo ended $?; cat"]
    tmux = Tmux(runner.folder, command, {**runner.env, "TERM": "xterm-256color"})
    try:
        tmux.wait_for("one more step")
        assert "filter" in tmux.shown()
        tmux("send-keys", "C-c")
        tmux.wait_for("ended 130")
        assert "STOPPED tiny-" in tmux.shown()
        assert runner.outcome["reason"] == "interrupted"
    finally:
        tmux("kill-server")
