"""The breaks still fit the code; a few of them are tried here, all of them by ``make breaks``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.breaks.apply import ROOT, Break, read_breaks

BREAKS = read_breaks()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_a_break_still_fits_its_code(one: Break, tmp_path: Path) -> None:
    (tmp_path / one.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / one.file, tmp_path / one.file)
    one.apply(tmp_path)
    assert (tmp_path / one.file).read_text() != (ROOT / one.file).read_text()
