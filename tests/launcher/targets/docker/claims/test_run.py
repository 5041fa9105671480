"""Whole runs in real containers: two nodes, elastic groups, lost nodes, interrupted launchers."""

from typing import Any

import pytest

from tests.launcher.docker_runs import MOUNTED, has, node
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = pytest.mark.docker
ELASTIC = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
from torch import ones
shared = os.environ["RUN_DIR"]
who = f"{os.environ['LAUNCHER_NODE_INDEX']}-{os.environ['LAUNCHER_INCARNATION']}"
open(f"{shared}/world-{dist.get_world_size()}-{who}", "w").close()
going = ones(1)
while going:
    # All of them see it at the same step.
    going *= not os.path.exists(f"{shared}/go")
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    time.sleep(0.1)
"""
"""Tells the world of each node's incarnation, and ends once there is a file ``go``."""


def test_a_mount_that_is_not_there_is_told_with_its_line_and_no_run_is_made(launcher):
    launcher.write("print('hello')\n", MOUNTED.replace("[./:/code:ro]", "[./:/code:ro, ./no:/x]"))
    told = launcher.fails(2, "run", "job.yaml", "--on", "docker", "--detach")
    assert ": mounts.1: " in told, told
    assert told.startswith("error: job.yaml:"), told
    assert f"mkdir -p {launcher.folder}/no, or correct the source" in told
    assert not (launcher.folder / "runs").exists()


def test_under_the_agent_losing_the_container_that_hosts_the_store_costs_no_restart(
    launcher, engine
):
    launcher.write(ELASTIC, MOUNTED)
    lose_node(launcher, engine, 0, "run", "job.yaml", "--on", "docker", "--nnodes", "1:2")


def lose_node(launcher: Runner, engine: Any, lost: int, *job: str) -> bytes:
    """A run of two nodes that loses one; what it said when it had ended well."""
    process = launcher.start(*job)
    wait_until(lambda: has(launcher, "world-2-0-0") and has(launcher, "world-2-1-0"))
    (run_id,) = launcher.run_ids()
    survivor = node(engine, run_id, 1 - lost).id
    node(engine, run_id, lost).kill()
    wait_until(lambda: has(launcher, f"world-2-{lost}-1"))
    assert node(engine, run_id, 1 - lost).id == survivor
    (launcher.folder / "runs/latest/go").touch()
    stderr: bytes = process.communicate(timeout=120)[1]
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    assert "worker-fault" not in launcher.outcome["restarts"]
    return stderr
