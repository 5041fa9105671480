"""Both kinds of jobs on Slurm keep the contract of all targets."""

from __future__ import annotations

import pytest

from tests.launcher.target_contract import JOB, Bench, TargetContract
from tests.slurm.typist import Typist

pytestmark = pytest.mark.slurm


class TestArray(TargetContract):
    @pytest.fixture
    def bench(self, typist: Typist) -> Bench:
        return Bench(name="slurm", launcher=typist, job=JOB)


@pytest.mark.slow  # the same code but for two files' names and the size
class TestAllocation(TargetContract):
    @pytest.fixture
    def bench(self, typist: Typist) -> Bench:
        return Bench(name="slurm", launcher=typist, job=f"{JOB}slurm: {{kind: allocation}}\n")

    def test_a_run_takes_a_size_within_its_bounds_and_no_other(self, bench: Bench) -> None:
        """An allocation keeps its size, and says what does not."""
        run_id = bench.start()
        refused = bench.launcher("scale", run_id, "1")
        assert refused.returncode == 2
        assert "kind: array" in refused.stderr
        assert bench.running(run_id) == [0, 1]
        assert bench.launcher("stop", run_id).returncode == 0
        assert bench.started[0].wait(60) == 143
