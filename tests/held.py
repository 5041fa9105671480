"""What a hold ``dev`` of two nodes has to do on every target, typed as a person would."""

from pathlib import Path

from tests.launcher.runner import Runner

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
