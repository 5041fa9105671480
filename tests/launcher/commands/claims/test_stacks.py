"""``launcher stacks`` as a person types it, on real runs of this machine."""

import json
from pathlib import Path

from tests.launcher.commands.claims.test_profile import launcher
from tests.launcher.runner import Runner
from tests.waiting import wait_until

STUCK = """
import os, pathlib, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def main():
    pathlib.Path(os.environ["RUN_DIR"], f"ready-{rank}").touch()
    if rank == 1:
        waits_for_a_lock()
    dist.all_reduce(torch.ones(1000))
main()
"""
JOB = "name: tiny\nnproc_per_node: {nproc}\nnnodes: {nnodes}\nstop_grace_s: 2\n"


def start(launcher: Runner, script: str, *, nproc: int = 1, nnodes: int = 1) -> Path:
    launcher.write(script, JOB.format(nproc=nproc, nnodes=nnodes))
    launcher.well("run", "job.yaml", "--on", "local", "--detach")
    folder = (launcher.folder / "runs/latest").resolve()
    ready = [folder / f"ready-{rank}" for rank in range(nproc * nnodes)]
    wait_until(lambda: all(path.exists() for path in ready))
    return folder


def test_stacks_name_the_rank_that_the_others_wait_for(launcher):
    start(launcher, STUCK, nproc=2)
    said: list[str] = []

    def is_told() -> bool:
        done = launcher("stacks", "latest")
        said[:] = [done.stderr, *done.stdout.splitlines()]
        return "has not entered all_reduce 1 " in done.stdout

    wait_until(is_told, lambda: "\n".join(said))
    assert said[1].startswith(
        "rank 1 has not entered all_reduce 1 (3.9 KiB, group default), rank 0 waits"
    )
    assert any(line.startswith("rank 0: all_reduce <- train.py:") for line in said)
    assert any(line.startswith("rank 1: waits_for_a_lock <- train.py:") for line in said)

    def is_judged() -> bool:
        said[:] = launcher("why", "latest").stdout.splitlines()
        return "(running): deadlock, likely: rank 1 stands at train.py:" in said[0]

    wait_until(is_judged, lambda: "\n".join(said))
    assert said[1].startswith("  where: rank 1 on node 0, train.py:"), said

    told = json.loads(launcher("stacks", "latest", "--rank", "1", "--json").stdout)
    assert [group["ranks"] for group in told["groups"]] == [[1]]
    refused = launcher("stacks", "latest", "--rank", "7")
    assert (refused.returncode, "has ranks 0-1 there" in refused.stderr) == (2, True)

    launcher("stop", "--grace", "0")
    last = launcher("stacks", "latest")
    assert "has ended (stop-requested); this is the last look at it" in last.stdout
    assert "rank 1: waits_for_a_lock" in last.stdout
