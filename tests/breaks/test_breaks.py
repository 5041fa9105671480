"""The breaks still fit the code; a few of them are tried here, all of them by ``make breaks``."""

import shutil

import pytest

from tests.breaks.apply import ROOT, read_breaks

BREAKS = read_breaks()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_a_break_still_fits_its_code(one, tmp_path):
    (tmp_path / one.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / one.file, tmp_path / one.file)
    one.apply(tmp_path)
    assert (tmp_path / one.file).read_text() != (ROOT / one.file).read_text()
