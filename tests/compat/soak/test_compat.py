"""What has to work with every supported torch; ``make compat TORCH=2.6.0`` runs it with that one.

The nodes run in the interpreter that COMPAT_PYTHON names, which needs torch and nothing else; left
out, in this one. The launcher and these tests are always this project's own.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.targets import process_table
from launcher.targets.interpreter import read_torch_version
from launcher.targets.local.target import find_agents
from tests.compat.test_compat import PYTHON
from tests.launcher.runner import Runner
from tests.waiting import wait_until

NNODES = pytest.mark.parametrize("nnodes", ["2", "1:2"])
ENDS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("torch", torch.__version__, "sum", total.item(), flush=True)
dist.destroy_process_group()
"""
ONE_FALLS = """
import os, pathlib, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
first = pathlib.Path("fallen")
if dist.get_rank() == 1 and not first.exists():
    first.touch()
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""
WAITS_FOR_ANOTHER_NODE = """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path(f"up-{os.environ['LAUNCHER_NODE_INDEX']}-{os.environ['LAUNCHER_INCARNATION']}").touch()
done = torch.zeros(1)
while not done:
    # All ranks see the same answer: the loss comes in the midst of a collective.
    done += any(pathlib.Path().glob("up-*-1")) and dist.get_world_size() == 2
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Runner]:
    """``launcher`` typed in a folder of the test's own, which may leave no process behind."""
    runner = Runner(tmp_path)
    yield runner
    left = runner.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "a test left processes behind"


def run(launcher: Runner, script: str, nnodes: str, *settings: str) -> tuple[str, ...]:
    """The words that start ``script`` on that many nodes of the interpreter under test."""
    launcher.write(script)
    sets = [f"--set={setting}" for setting in (f"local.python={PYTHON}", *settings)]
    return ("run", "job.yaml", "--on", "local", "--nnodes", nnodes, *sets)


@NNODES
@pytest.mark.parametrize(
    "settings",
    [("engine=agent", "start=fresh"), ("engine=agent", "start=fork"), ("engine=torchrun",)],
    ids=["fresh", "fork", "torchrun"],
)
def test_two_nodes_meet_and_end(launcher, nnodes, settings):
    done = launcher.well(*run(launcher, ENDS, nnodes, "nproc_per_node=2", *settings))
    assert f" torch {read_torch_version(PYTHON)}" in done.stdout  # the build's tag may follow
    assert done.stdout.count(" sum 10.0") == 4


@pytest.mark.parametrize("nnodes", ["2", "1:2"])
@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_killed_worker_is_started_again(launcher, nnodes, start):
    settings = ("engine=agent", f"start={start}", "max_restarts=1")
    done = launcher.well(*run(launcher, ONE_FALLS, nnodes, *settings))
    assert done.stdout.count("sum 4.0") == 2
    assert launcher.outcome["attempts"] == 1


@pytest.mark.parametrize("lost", [0, 1])
@NNODES
@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_killed_node_is_replaced(launcher, tmp_path, nnodes, start, lost):
    settings = ("engine=agent", f"start={start}", "agent.detection_limit_s=2")
    process = launcher.start(*run(launcher, WAITS_FOR_ANOTHER_NODE, nnodes, *settings))
    wait_until(lambda: (tmp_path / "up-0-0").exists() and (tmp_path / "up-1-0").exists())
    (run_id,) = launcher.run_ids()
    (node,) = find_agents(
        process_table.find(**{protocol.NODE_INDEX: str(lost), protocol.RUN_ID: run_id})
    )
    os.kill(node, signal.SIGKILL)
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr.decode()
    nodes = json.loads(launcher("report", "--json").stdout)["nodes"]
    ended = [(n["node_index"], n["incarnation"]) for n in nodes if n["cause"] == "completed"]
    assert ended == [(index, int(index == lost)) for index in (0, 1)]
