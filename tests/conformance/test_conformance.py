"""The table's cells, each with real processes; the page that shows them; a busy machine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import PATIENCE
from tests.conformance.nodes import Group
from tests.conformance.page import render_page
from tests.conformance.table import BACKENDS, MODULES, ROWS, STILL, Row

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/conformance.md"
MakeGroup = Callable[[str, bool], Group]


def cells() -> Iterator[Any]:
    for row in ROWS:
        for backend in BACKENDS:
            marks = [pytest.mark.slow] if row.is_slow(backend) else []
            if backend == "etcd-v2":
                marks.append(pytest.mark.etcd)
            yield pytest.param(row, backend, id=f"{row.name}-{backend}", marks=marks)


@pytest.mark.parametrize(("row", "backend"), list(cells()))
def test_the_cell_says_what_happens(row: Row, backend: str, group_on: MakeGroup) -> None:
    hold(row, backend, group_on(backend, row.apart))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_the_roster_s_column_holds_on_a_busy_machine(row: Row, group_on: MakeGroup) -> None:
    group = group_on("roster", row.apart)
    group.patience = PATIENCE
    hold(row, "roster", group)


def hold(row: Row, backend: str, group: Group) -> None:
    """Plays the scenario and compares how it ends with the table."""
    expected = row.cell(backend)
    group.expects_hang = STILL in expected
    seen = row.play(group)
    assert seen == expected, f"{seen}, where the table says: {expected}\n{group.logs()}"


def test_the_page_is_made_from_the_table() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(render_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "the table has changed: UPDATE_GOLDEN=1 make test ARGS='tests/conformance'"
    )


def test_each_scenario_has_a_row() -> None:
    plays = {
        play
        for module in MODULES
        for name, play in vars(module).items()
        if inspect.isfunction(play) and play.__module__ == module.__name__
        if not name.startswith("_") and list(inspect.signature(play).parameters) == ["group"]
    }
    assert {row.play for row in ROWS} == plays
    assert len(ROWS) == len(plays)
