"""Stacks of ranks in a container, in which nobody may trace."""

from __future__ import annotations

import pytest

from tests.launcher.docker_runs import MOUNTED
from tests.launcher.looks import STUCK_FOUR_WAYS, check_four_ways
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_ranks_in_a_container_that_are_stuck_in_four_ways(launcher: Runner) -> None:
    launcher.write(STUCK_FOUR_WAYS, MOUNTED)
    done = launcher("run", "job.yaml", "--on", "docker", "--nproc-per-node", "4", "--detach")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: launcher("logs", "latest").stdout.count("ready") == 4)
    wait_until(lambda: "have not entered" in launcher("stacks", "latest").stdout)
    check_four_ways(launcher("stacks", "latest").stdout)
    assert launcher("stop", "--grace", "0").returncode == 0
