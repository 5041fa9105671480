"""The table's cells, each with real processes; the page that shows them; a busy machine."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from tests.conformance.page import render_page
from tests.conformance.table import MODULES, ROWS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/conformance.md"


def test_the_page_is_made_from_the_table():
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(render_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "the table has changed: UPDATE_GOLDEN=1 make test ARGS='tests/conformance'"
    )


def test_each_scenario_has_a_row():
    plays = {
        play
        for module in MODULES
        for name, play in vars(module).items()
        if inspect.isfunction(play) and play.__module__ == module.__name__
        if not name.startswith("_") and list(inspect.signature(play).parameters) == ["group"]
    }
    assert {row.play for row in ROWS} == plays
    assert len(ROWS) == len(plays)
