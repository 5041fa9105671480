"""Stacks of ranks in containers whose image has no py-spy."""

from __future__ import annotations

import pytest

from tests.launcher.docker_runs import MOUNTED
from tests.launcher.looks import STUCK_FOUR_WAYS, check_four_ways
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


def test_ranks_of_two_containers_that_are_stuck_in_four_ways(launcher):
    launcher.write(STUCK_FOUR_WAYS, MOUNTED)
    nodes = ("--nnodes", "2", "--nproc-per-node", "2")
    launcher.well("run", "job.yaml", "--on", "docker", *nodes, "--detach")
    said: list[str] = []

    def is_told() -> bool:
        done = launcher("stacks", "latest")
        said[:] = [done.stdout, done.stderr]
        return "have not entered" in done.stdout

    try:
        wait_until(is_told, lambda: "\n".join(said), limit_s=150)
        check_four_ways(said[0])
        early = launcher("profile", "latest", "--seconds", "1")
        assert "no training with fabric_train answers here yet" in early.stderr
    finally:
        assert launcher("stop", "--grace", "0").returncode == 0
