"""The table's cells, each with real processes; the page that shows them; a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.conftest import PATIENCE
from tests.conformance.nodes import Group
from tests.conformance.table import BACKENDS, ROWS, STILL, Row


def cells() -> Iterator[Any]:
    for row in ROWS:
        for backend in BACKENDS:
            marks = [pytest.mark.etcd] if backend == "etcd-v2" else []
            yield pytest.param(row, backend, id=f"{row.name}-{backend}", marks=marks)


@pytest.mark.parametrize(("row", "backend"), list(cells()))
def test_the_cell_says_what_happens(row, backend, group_on):
    hold(row, backend, group_on(backend, row.apart))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_the_roster_s_column_holds_on_a_busy_machine(row, group_on):
    group = group_on("roster", row.apart)
    group.patience = PATIENCE
    hold(row, "roster", group)


def hold(row: Row, backend: str, group: Group) -> None:
    """Plays the scenario and compares how it ends with the table."""
    expected = row.cell(backend)
    group.expects_hang = STILL in expected
    seen = row.play(group)
    assert seen == expected, f"{seen}, where the table says: {expected}\n{group.logs()}"
