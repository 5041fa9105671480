"""The table's cells, each with real processes."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.scenarios import BACKENDS, ROWS, STILL


def cells() -> Iterator[Any]:
    for row in ROWS:
        for backend in BACKENDS:
            marks = [pytest.mark.etcd] if backend == "etcd-v2" else []
            yield pytest.param(row, backend, id=f"{row.play.__name__}-{backend}", marks=marks)


@pytest.mark.parametrize(("row", "backend"), list(cells()))
def test_the_cell_says_what_happens(row, backend, group_on):
    expected, group = row.cell(backend), group_on(backend)
    group.expects_hang = STILL in expected
    seen = row.play(group)
    assert seen == expected, f"{seen}, where the table says: {expected}\n{group.logs()}"
