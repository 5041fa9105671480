"""``hold``, ``run --in`` and ``release`` on hosts: typed as a person would."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract.process_stat import parent_of
from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.targets import process_table
from launcher.targets.hosts.program.processes import KEEPER
from tests.held import SUMS, folder_of_hold
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

    def kill_node(self, index: int) -> None:
        """The first process of a node, which its keeper has started."""
        name = folder_of_hold(self).name
        found = process_table.find(**{RUN_ID: name, NODE_INDEX: str(index)})
        keepers = [pid for pid in found if process_table.variable_of(pid, KEEPER)]
        (first,) = (pid for pid in found if parent_of(pid) in keepers)
        os.kill(first, signal.SIGKILL)


@pytest.fixture
def held(typist: Typist, tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path, typist.network)
    yield held
    held.well("release", "dev")


def test_a_run_in_a_hold_of_hosts_and_what_is_refused_there(held):
    held.hold()
    held.run_well()
    told = held.fails(2, "run", "job.yaml", "--in", "dev", "--nnodes", "1")
    assert "a run in dev takes all of its 2 nodes" in told
    refused = held.fails(2, "run", "job.yaml", "--in", "dev", "--set", "hosts.runtime=docker")
    assert "hosts.runtime: docker, but the nodes of dev are python" in refused
