"""The breaks still fit the code; a few of them are tried here, all of them by ``make breaks``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.breaks.__main__ import find_catcher
from tests.breaks.apply import ROOT, Break, copy_project, read_breaks

BREAKS = read_breaks()


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_a_break_still_fits_its_code(one: Break, tmp_path: Path) -> None:
    (tmp_path / one.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / one.file, tmp_path / one.file)
    one.apply(tmp_path)
    assert (tmp_path / one.file).read_text() != (ROOT / one.file).read_text()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy_project(folder := tmp_path_factory.mktemp("project"))
    return folder


@pytest.mark.parametrize("one", [one for one in BREAKS if one.in_ci], ids=lambda one: one.name)
def test_a_break_is_caught(one: Break, copy: Path) -> None:
    assert find_catcher(one, copy), one.sees
