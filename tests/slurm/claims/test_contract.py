"""Jobs on Slurm keep the contract of all targets."""

from __future__ import annotations

import pytest

from tests.launcher.target_contract import JOB, Bench, TargetContract
from tests.slurm.typist import Typist

pytestmark = pytest.mark.slurm


class TestArray(TargetContract):
    @pytest.fixture
    def bench(self, typist: Typist) -> Bench:
        return Bench(name="slurm", launcher=typist, job=JOB)

    def test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(self, bench):
        super().test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(bench)
