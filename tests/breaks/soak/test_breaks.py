"""The breaks still fit the code; a few of them are tried here, all of them by ``make breaks``."""

from pathlib import Path

import pytest

from tests.breaks.__main__ import find_catcher
from tests.breaks.apply import copy_project
from tests.breaks.test_breaks import BREAKS


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy_project(folder := tmp_path_factory.mktemp("project"))
    return folder


@pytest.mark.parametrize("one", [one for one in BREAKS if one.in_ci], ids=lambda one: one.name)
def test_a_break_is_caught(one, copy):
    assert find_catcher(one, copy), one.sees
