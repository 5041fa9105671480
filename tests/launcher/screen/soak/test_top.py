"""``launcher top``: what it reads of a run, and what it shows in a terminal."""

import gc
from dataclasses import replace
from typing import Any

from textual.widgets import DataTable
from textual.widgets._data_table import RowRenderables

from launcher.screen import app
from tests.launcher.screen.test_top import ROW, SEEN, cells_of, node, watch


def test_a_thousand_nodes_are_shown_filtered_and_changed_in_place(watch):
    rows = [replace(node(node_index=index), host=f"gpu{index:04}") for index in range(1000)]
    lost = replace(rows[700], report=replace(rows[700].report, state="missing"))

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
