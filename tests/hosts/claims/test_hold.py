"""``hold``, ``run --in`` and ``stop`` on hosts: typed as a person would."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.held import SUMS
from tests.hosts.typist import PREFIX, Typist

pytestmark = pytest.mark.hosts


class Held(Typist):
    """Types for a hold ``dev`` of two hosts."""

    runtime = "python"

    def write(self, script: str, job: str = "", prefix: str = PREFIX) -> None:
        super().write(script, prefix=prefix.replace("python", self.runtime))

    def hold(self) -> None:
        words = ("hold", "--name", "dev", "--nnodes", "2", "--nproc-per-node", "1", "--on", "hosts")
        self.well(*words, "--set", f"hosts.runtime={self.runtime}")

    def run_well(self) -> None:
        self.write(SUMS)
        done = self.well("run", "job.yaml", "--in", "dev")
        assert done.stdout.count("sum 2.0 left None") == 2, done.stdout


@pytest.fixture
def held(typist: Typist, tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path, typist.network)
    yield held
    held.well("stop", "dev")


def test_a_run_in_a_hold_of_hosts_and_what_is_refused_there(held):
    held.hold()
    held.run_well()
    told = held.fails(2, "run", "job.yaml", "--in", "dev", "--nnodes", "1")
    assert "a run in dev takes all of its 2 nodes" in told
    refused = held.fails(2, "run", "job.yaml", "--in", "dev", "--set", "hosts.runtime=docker")
    assert "hosts.runtime: docker, but the nodes of dev are python" in refused
