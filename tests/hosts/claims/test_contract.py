"""Machines reached over SSH keep the contract of all targets."""

from __future__ import annotations

import dataclasses

import pytest

from tests.hosts.typist import Typist
from tests.launcher.target_contract import JOB, Bench, TargetContract

pytestmark = pytest.mark.hosts


@dataclasses.dataclass(kw_only=True)
class HostsBench(Bench):
    """Two of the test's hosts; their files are seen by commands there."""

    launcher: Typist

    def write(self) -> None:
        super().write()
        (self.launcher.folder / "job.yaml").write_text(
            f"{self.job}hosts: {{runtime: python}}\ncommand: [train.py]\n"
        )

    def end_well(self) -> None:
        for host in self.launcher.network.hosts[:2]:
            host.run("sh", "-c", "for run in $HOME/.launcher/runs/*; do touch $run/go; done")


class TestHosts(TargetContract):
    @pytest.fixture
    def bench(self, typist: Typist) -> Bench:
        # They end when nobody hears their launcher.
        bench = HostsBench(name="hosts", launcher=typist, job=JOB)
        bench.outlives_launcher, bench.ended_unseen = False, "stopped"
        return bench

    def test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(self, bench):
        super().test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(bench)
