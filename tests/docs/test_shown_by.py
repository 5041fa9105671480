"""Tables that name the test of each row name one that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMN = {"docs/fault-tolerance.md": "shown by", "CONTRIBUTING.md": "in `tests/`"}


def rows_of(page: str) -> list[list[str]]:
    """The cells of each row of the tables that have the column."""
    found, is_inside = [], False
    for line in (ROOT / page).read_text().splitlines():
        if line.endswith(f"| {COLUMN[page]} |"):
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not line.startswith("|---"):
            found.append(line.strip("| ").split(" | "))
    return found


@pytest.mark.parametrize("page", COLUMN)
def test_each_row_names_a_test_that_is_there(page):
    rows = rows_of(page)
    assert len(rows) > 5
    for row in rows:
        names = re.findall(r"`([\w/]+\.py)`", row[-1])
        assert names, row
        for name in names:
            assert "def test_" in (ROOT / "tests" / name).read_text(), name
