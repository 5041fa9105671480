"""Node 0, which holds the store, is killed: the run goes on, and its new node 0 finds it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.targets import process_table
from launcher.targets.local.target import find_agents
from tests.launcher.runner import Runner
from tests.waiting import wait_until

SCRIPT = """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path(f"up-{os.environ['LAUNCHER_NODE_INDEX']}-{os.environ['LAUNCHER_INCARNATION']}").touch()
print("world", dist.get_world_size(), flush=True)
done = torch.zeros(1)
while not done:
    # All ranks see the same answer: the loss comes in the midst of a collective.
    done += pathlib.Path("up-0-1").exists() and dist.get_world_size() == 2
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.slow  # test_what_a_job_gets loses such a node
@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_a_killed_node_0_is_replaced_and_meets_the_others_again(
    launcher: Runner, tmp_path: Path, nnodes: str
) -> None:
    launcher.write(SCRIPT)
    process = launcher.start(
        *("run", "job.yaml", "--on", "local", "--nnodes", nnodes, "--set", "engine=agent"),
        *("--set", "agent.detection_limit_s=2"),
    )
    wait_until(lambda: (tmp_path / "up-0-0").exists() and (tmp_path / "up-1-0").exists())
    (run_id,) = launcher.run_ids()
    (node,) = find_agents(process_table.find(**{protocol.NODE_INDEX: "0", protocol.RUN_ID: run_id}))
    os.kill(node, signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    told = json.loads(launcher("report", "--json").stdout)
    assert [(n["node_index"], n["incarnation"], n["reason"]) for n in told["nodes"]] == [
        (0, 0, None),
        (0, 1, "completed"),
        (1, 0, "completed"),
    ]
    assert "store lost, starting again" in [moment["text"] for moment in told["timeline"]]
