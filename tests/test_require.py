"""Tests of engines that are absent: skipped by name, or failed where REQUIRE names the engine."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_what_shares_an_engine_or_a_file_stays_in_one_process(request):
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not in a process of pytest-xdist")
    assert request.node.nodeid.endswith("@tests/test_require.py")
