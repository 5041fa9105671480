"""The page that shows the table, whose cells are tests in ``soak/``."""

import os
from pathlib import Path

from tests.conformance.page import render_page

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/conformance.md"


def test_the_page_is_made_from_the_scenarios():
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(render_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "the scenarios have changed: UPDATE_GOLDEN=1 make test ARGS='tests/conformance'"
    )
