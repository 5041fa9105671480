"""A folder with nothing but a training of one's own, as people have it."""

from pathlib import Path

SCRIPT = """
import argparse
import os
import sys

import helper
import torch
import torch._dynamo  # before the process group: imported later, it keeps the group alive
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.tensor([[float(word) for word in line.split()] for line in open("data.txt")])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
losses = []
for step in range(5):
    batch = data[rank::world]
    loss = (model(batch[:, :2]) - batch[:, 2:]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    losses.append(f"{total.item() / world:.6f}")
if rank == 0:
    print(helper.NAME, *losses, flush=True)
    with open("out.txt", "w") as file:
        file.write(" ".join(losses))
dist.barrier()
# A group that something refers to keeps its threads, and in 5 of 70 runs one of them aborted
# the process while Python ended (torch 2.13, under torchrun too).
del model, optimizer, loss
dist.destroy_process_group()
"""
DATA = "0.1 0.2 0.5\n0.4 0.1 0.2\n0.9 0.3 0.1\n0.2 0.8 0.6\n"
PROJECT = "my tr\u00e4ining"
"""The folder's name, as some people write them."""
TWO = ("--nnodes", "2", "--nproc-per-node", "1")
TWO_BY_TWO = ("--nnodes", "2", "--nproc-per-node", "2")
ARGUMENTS = ("--", "--lr", "0.2")
LOSSES = ["0.668008", "0.193762", "0.081923", "0.053989", "0.045585"]
"""With these arguments, however many processes share the four lines of data."""


def make_project(parent: Path) -> Path:
    """A folder with ``train.py``, a module and a data file beside it."""
    folder = parent / PROJECT
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text('NAME = "losses"\n')
    (folder / "data.txt").write_text(DATA)
    return folder


def losses_in(output: str) -> list[str]:
    """The losses that rank 0 printed."""
    line = next(line for line in output.splitlines() if "losses " in line)
    return line.partition("losses ")[2].split()
