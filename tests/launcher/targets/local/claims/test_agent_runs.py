"""Whole runs under the agent: what it serves while they go on, and when it lets nodes in."""

import urllib.request

import pytest

from tests.launcher.agent.place import free_port
from tests.launcher.runner import PREFIX
from tests.waiting import wait_until

STEPPING = """
import pathlib, time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(100_000):
    weight.grad = torch.ones(1)
    optimizer.step()
    if step == 3:
        pathlib.Path("stepping").touch()
    if pathlib.Path("go").exists():
        break
    time.sleep(0.02)
"""


def test_a_running_node_serves_its_health_and_its_metrics(launcher):
    port = free_port()
    launcher.write(STEPPING, PREFIX + f"agent: {{health: {{port: {port}}}}}\n")
    process = launcher.start("run", "job.yaml", "--on", "local")
    wait_until((launcher.folder / "stepping").exists)
    # The watchdog looks at the heartbeats a few times a second; what is served is read at once.
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr.decode()
    assert {"launcher_healthy 1", "launcher_attempt 0"} <= {*lines}
    (step,) = (line.split()[1] for line in lines if line.startswith("launcher_step "))
    assert int(step) >= 3
    assert "launcher_world_size 1" in lines


SPEAKING = """
import json, os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
world, index = dist.get_world_size(), os.environ["LAUNCHER_NODE_INDEX"]
node_dir = pathlib.Path(os.environ["LAUNCHER_NODE_DIR"])
(node_dir / "stop-ready").touch()
told = f"world-{world}-{index}-{os.environ['LAUNCHER_INCARNATION']}"
pathlib.Path(told).write_text("after the commit" if pathlib.Path("committed").exists() else "")
going = torch.ones(1)
while going:
    # All of them see it at the same step.
    going *= not pathlib.Path("go").exists()
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    request = node_dir / "stop-request"
    if request.exists() and not pathlib.Path("asked").exists():
        pathlib.Path("asked").write_text(json.loads(request.read_text())["reason"])
    if pathlib.Path("may-commit").exists() and request.exists():
        pathlib.Path("committed").touch()
        (node_dir / "stop-ack").write_text('{"step": 1}')
    time.sleep(0.05)
dist.destroy_process_group()
"""


def test_a_newcomer_comes_in_only_after_the_running_group_has_committed(launcher):
    launcher.write(SPEAKING)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "1:2")
    wait_until((launcher.folder / "world-2-1-0").exists)
    (launcher.folder / "may-commit").touch()
    assert launcher("scale", "1").returncode == 0
    wait_until((launcher.folder / "world-1-0-0").exists)
    for name in ("may-commit", "asked", "committed"):
        (launcher.folder / name).unlink(missing_ok=True)
    assert launcher("scale", "2").returncode == 0
    wait_until((launcher.folder / "asked").exists)
    assert (launcher.folder / "asked").read_text() == "resize"
    assert not (launcher.folder / "world-2-1-1").exists()
    (launcher.folder / "may-commit").touch()
    wait_until((launcher.folder / "world-2-1-1").exists)
    assert (launcher.folder / "world-2-1-1").read_text() == "after the commit"
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr.decode()
    assert "worker-fault" not in launcher.outcome["restarts"]
    assert launcher.outcome["attempts"] == 1
    assert b"survived" not in stderr, "no node was lost"


FALLING = """
import os, pathlib, sys, threading, time
told = pathlib.Path("told")
if os.environ["RANK"] == "1":
    def tell(*error):
        sys.__excepthook__(*error)
        told.touch()
    sys.excepthook = tell
    # Failed, and kept from ending: it is ended when the other one has failed too.
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("the cause")
while not told.exists():
    time.sleep(0.05)
raise RuntimeError("Connection closed by peer [127.0.0.1]:1")
"""


@pytest.mark.parametrize(("engine", "cause"), [("agent", "script-error"), ("torchrun", "killed")])
def test_a_worker_that_failed_first_and_ended_last_is_the_first_failure_told_once(
    launcher, engine, cause
):
    launcher.write(FALLING)
    done = launcher.fails(
        1,
        *("run", "job.yaml", "--on", "local", "--nproc-per-node", "2"),
        *("--set", f"engine={engine}", "--set", "stop_grace_s=1"),
    )
    told = done.partition(": FAILED on local ")[2].splitlines()
    assert told[0].startswith("(training-failed; fault: training; exit code 1; ")
    assert told[1] == "  first failure: rank 1 on node 0: ValueError: the cause"
    (fell,) = [line for line in told if line.startswith("  failed after it")]
    assert "rank 0 on node 0: RuntimeError: Connection closed by peer" in fell
    first = launcher.outcome["failure"]["first"]
    assert (first["rank"], first["cause"]) == (1, cause)
    report = launcher("report").stdout
    assert report.count("the cause") <= 4, "first cause, its traceback's two lines, timeline"
