"""A target that nothing else knows does all that every target does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launcher.runner import Runner
from tests.launcher.target_contract import Bench, TargetContract


class ToyRunner(Runner):
    """Types the command line that has the toy in its table."""

    def argv(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "tests.launcher.toy_target", *argv]


class TestToy(TargetContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(name="toy", launcher=ToyRunner(tmp_path))

    def test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(
        self, bench: Bench
    ) -> None:
        super().test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(bench)

    def test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(self, bench: Bench) -> None:
        super().test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(bench)
