"""``launcher compare``: real trainings with 1 and 2 processes, and what makes them differ."""

import signal
from pathlib import Path

import pytest

from tests.launcher.runner import Runner
from tests.waiting import wait_until

SCRIPT = """
import os, pathlib, sys, time
case, world = sys.argv[1], int(os.environ["WORLD_SIZE"])
if case == "waits":
    pathlib.Path("up").touch()
    time.sleep(300)
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from fabric_train.trainers import Companion, cut_loader

if case == "one fails" and world == 2:
    raise ValueError("two are too many")
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank() if case == "other samples" else 0)
inputs = torch.randn(96, 6)
middle = {"BatchNorm": nn.BatchNorm1d(64), "dropout": nn.Dropout(0.3)}.get(case, nn.Identity())
model = nn.Sequential(nn.Linear(6, 64), middle, nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1 * (world if case == "learning rate" else 1))
safe, at = Companion(), {"epoch": 0, "batch": 0, "step": 0}
none = lambda folder: (folder / "none").touch()
safe.open(model, none, dict, kind="tiny", seed=0, world_size=world)
samples = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
batch = 12 if case == "effective batch" else 12 // world
loader = DataLoader(samples, batch, shuffle=True)
loader = cut_loader(loader, safe, lambda: (at["epoch"], at["batch"]))
parallel = DistributedDataParallel(model)
safe.begin(0)
for at["epoch"] in range(6):
    at["batch"] = 0
    for at["batch"], (batch, targets) in enumerate(loader, 1):
        loss = nn.functional.mse_loss(parallel(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at["step"] += 1
        safe.after_batch(at["step"], loss.item)
safe.finish(at["step"])
safe.close()
dist.barrier()
os._exit(0)  # a gloo group that is alive while Python ends may abort (torch 2.13)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Runner:
    runner = Runner(tmp_path)
    runner.write(SCRIPT, "name: tiny\nstart: fork\ncheckpoint_dir: kept\n")
    return runner


COMPARE = ("compare", "job.yaml", "--on", "local", "--nproc-per-node")


CAUSES = {
    "order of reduction": "added in another order",
    "dropout": "different random numbers",
    "effective batch": "12 samples in a step against 24",
    "learning rate": "0.1 against 0.2 in step 1",
    "BatchNorm": "1 by each process's own samples",
}
HERE, ELSEWHERE = [*CAUSES][:2], [*CAUSES][2:]
"""Those that ``make claims`` shows, and those that ``make soak`` does."""


@pytest.mark.parametrize("cause", HERE)
def test_what_makes_two_worlds_differ_is_named(launcher, cause):
    done = launcher.well(*COMPARE, "1,2", "--html", "page.html", "--", cause)
    head, one, two, *causes = done.stdout.splitlines()
    assert head.split()[:3] == ["nproc_per_node", "workers", "batch"]
    assert one.split()[:3] == ["1", "1", "12"]
    assert two.split()[:3] == ["2", "2", "24" if cause == "effective batch" else "12"]
    (why,) = causes
    assert why.startswith("2 against 1: ")
    assert CAUSES[cause] in why
    page = (launcher.folder / "page.html").read_text()
    assert "<svg" in page
    assert why.replace("'", "&#x27;") in page
    assert not (launcher.folder / "kept").exists(), "neither goes on from the other's checkpoints"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_leaves_nothing(launcher, signum):
    comparing = launcher.start(*COMPARE, "1,2", "--", "waits")
    wait_until((launcher.folder / "up").exists)
    comparing.send_signal(signum)
    _, said = comparing.communicate(timeout=100)
    assert (comparing.returncode, b"nothing was left running" in said) == (130, True)
    assert not launcher.processes()
    assert len(launcher.run_ids()) == 1


@pytest.mark.parametrize("given", ["", "2", "1,x", "0,1", "1,,2"])
def test_numbers_that_cannot_be_compared_are_refused(launcher, given):
    told = launcher.fails(2, *COMPARE[:-1], *([COMPARE[-1], given] if given else []))
    fix = "fix: --nproc-per-node 1,2,4"
    assert told.splitlines() == [
        f"error: --nproc-per-node {given}: not two or more numbers of processes",
        f"  {fix}",
    ]
    assert not launcher.run_ids()
