"""``launcher stacks`` as a person types it, on real runs of this machine."""

import time

from tests.launcher.commands.claims.test_stacks import launcher, start
from tests.waiting import wait_until

SLEEPS = """
import os, pathlib, time
pathlib.Path(os.environ["RUN_DIR"], "ready-" + os.environ["RANK"]).touch()
time.sleep(600)
"""


def test_64_nodes_of_one_machine_are_looked_at_within_5_s(launcher):
    launcher.limit_s = 240
    start(launcher, SLEEPS, nnodes=64)
    began = time.monotonic()
    done = launcher("stacks", "latest")
    assert time.monotonic() - began < 30, "5 s on a machine that does nothing else"
    assert done.stdout.startswith("ranks 0-63: "), done.stdout + done.stderr


STEPS = """
import os, pathlib
import torch, torch.distributed as dist
dist.init_process_group("gloo")
folder = pathlib.Path(os.environ["RUN_DIR"])
rank = dist.get_rank()
ones = torch.ones(200, 200)
for when in ("ready", "after"):
    for _ in range(100):  # until torch has all its threads
        dist.all_reduce(ones @ ones)
    said = " ".join(str(len(os.listdir(f"/proc/self/{what}"))) for what in ("task", "fd"))
    (folder / f"{when}-{rank}.part").write_text(said)
    (folder / f"{when}-{rank}.part").rename(folder / f"{when}-{rank}")
    wait = torch.zeros(1)
    while not wait.item():  # steps go on while it is looked at
        wait.fill_((folder / "looked").exists())
        dist.all_reduce(wait, op=dist.ReduceOp.MIN)
"""


def test_a_look_leaves_threads_and_open_files_as_they_were(launcher):
    folder = start(launcher, STEPS, nproc=2)
    for _ in range(5):
        assert launcher("stacks", "latest").returncode == 0
    (folder / "looked").touch()
    wait_until(lambda: all((folder / f"after-{rank}").exists() for rank in (0, 1)))
    for rank in (0, 1):
        assert (folder / f"after-{rank}").read_text() == (folder / f"ready-{rank}").read_text()
