"""Faults that plain torchrun sleeps through, in real containers: freezes and cut networks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.docker_runs import MOUNTED, containers, has, node
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = pytest.mark.docker
JOB = MOUNTED + "agent: {detection_limit_s: 2}\n"
TRAINING = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
shared, index = os.environ["RUN_DIR"], os.environ["LAUNCHER_NODE_INDEX"]
while True:
    seen = torch.ones(1)
    dist.all_reduce(seen)
    told = f"{shared}/beat-{index}"
    with open(told + ".new", "w") as file:
        file.write(f"{int(seen)} {time.time()}")
    os.replace(told + ".new", told)
    going = torch.tensor([0.0 if os.path.exists(f"{shared}/go") else 1.0])
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if not going.item():
        break
    # Outside any collective for most of the time: nobody's collective tells of a lost node.
    time.sleep(0.3)
dist.destroy_process_group()
"""


def beat(launcher: Runner, index: int) -> tuple[int, float]:
    """The world that a node's worker last computed in, and when."""
    path = launcher.folder / f"runs/latest/beat-{index}"
    if not path.exists():
        return 0, 0.0
    world, at = path.read_text().split()
    return int(world), float(at)


def wait_for_world(launcher: Runner, size: int, *indices: int) -> None:
    wait_until(lambda: all(beat(launcher, index)[0] == size for index in indices))


def generations(launcher: Runner) -> list[int]:
    folder = Path(launcher.folder, "runs/latest/checkpoints/generations")
    return sorted(int(path.stem) for path in folder.glob("*.json"))


def finish(launcher: Runner, process: Any) -> None:
    (launcher.folder / "runs/latest/go").touch()
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["attempts"] == 1
    assert "worker-fault" not in launcher.outcome["restarts"]


def test_nodes_that_freeze_or_are_cut_off_are_lost_and_join_again_when_they_are_back(
    launcher, engine
):
    launcher.write(TRAINING, JOB)
    process = launcher.start("run", "job.yaml", "--on", "docker", "--nnodes", "1:3")
    wait_for_world(launcher, 3, 0, 1, 2)
    (run_id,) = launcher.run_ids()
    (network,) = engine.networks.list(names=[run_id])
    # Node 0 has the store.
    for index, is_frozen in ((2, False), (0, True), (0, False)):
        others = [other for other in range(3) if other != index]
        lost, before = node(engine, run_id, index), generations(launcher)
        lost.pause() if is_frozen else network.disconnect(lost)
        wait_for_world(launcher, 2, *others)
        assert generations(launcher)[-1] > before[-1], "the others alone may commit from now on"
        lost.unpause() if is_frozen else network.connect(lost)
        wait_for_world(launcher, 3, 0, 1, 2)
        assert node(engine, run_id, index).id == lost.id, "it came back by itself"
    finish(launcher, process)


def test_sigterm_before_the_rendezvous_is_done_is_heard_by_pid_1(launcher, engine):
    launcher.write("print('hello')\n", MOUNTED)
    argv = ("--on", "docker", "--nnodes", "2", "--set", "engine=agent")
    process = launcher.start("run", "job.yaml", *argv)
    # The agent has only begun to import torch by then.
    wait_until(lambda: has(launcher, "ledger/agent-0-0.jsonl"))
    (run_id,) = launcher.run_ids()
    first = node(engine, run_id, 0)
    first.stop(timeout=60)
    outcome = launcher.folder / "runs/latest/nodes/0/0/outcome.json"
    wait_until(outcome.exists)
    told = json.loads(outcome.read_text())
    assert (told["cause"], told["exit_code"]) == ("preempted", 143)
    process.terminate()
    process.communicate(timeout=90)
    assert containers(engine, run_id) == []
