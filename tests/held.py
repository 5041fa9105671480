"""What a hold ``dev`` of two nodes has to do on every target, typed as a person would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.launcher.runner import Runner
from tests.waiting import wait_until

JOB = "name: tiny\nstop_grace_s: 5\n"
SUMS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), "left", os.environ.get("LEFT"), flush=True)
os.environ["LEFT"] = "1"
if "fail" in sys.argv:
    raise ValueError("as asked")
dist.destroy_process_group()  # a gloo group that is alive while Python ends may abort (torch 2.13)
"""
TRAINS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
run = os.environ["RUN_DIR"]
going = torch.ones(1)
while going:
    open(f"{run}/up-{os.environ['RANK']}-{os.environ['LAUNCHER_INCARNATION']}", "w").close()
    going *= not os.path.exists(f"{run}/go")
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
print("trained", flush=True)
dist.destroy_process_group()
"""
"""Trains until a file ``go`` is in the run's folder."""


def folder_of_hold(launcher: Runner) -> Path:
    return next((launcher.folder / "runs").glob("dev-*"))


def is_up(launcher: Runner, *names: str) -> bool:
    return all((launcher.folder / "runs/latest" / name).exists() for name in names)


def check_lost_nodes(launcher: Runner, kill: Callable[[int], None]) -> None:
    """Node 1 is killed while a run uses it, and once more while it waits."""
    hold = folder_of_hold(launcher)
    before = len(list((hold / "nodes/1").iterdir()))
    launcher.write(TRAINS, JOB + "max_restarts: 2\n")
    process = launcher.start("run", "job.yaml", "--in", "dev")
    wait_until(lambda: is_up(launcher, "up-0-0", "up-1-0"))
    kill(1)
    wait_until(lambda: is_up(launcher, "up-1-1"))
    (launcher.folder / "runs/latest/go").touch()
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert out.count(b"trained") == 2
    kill(1)
    wait_until(lambda: (hold / f"nodes/1/{before + 1}/ready").exists())
    launcher.write(SUMS, JOB)
    done = launcher.well("run", "job.yaml", "--in", "dev")
    assert done.stdout.count("sum 2.0") == 2
