"""A training whose losses tell whether another launch was the same."""

LOSSES = """
import os
import sys
import weakref
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel

if "OMPI_COMM_WORLD_RANK" in os.environ:  # mpirun gives no other names
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[-1]))
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(step, loss.item(), flush=True)
# A group that lives on ends within the interpreter's end, and may abort that. The model holds it,
# and so do defaults of torch.distributed.nn, where DDP is the first to import that.
group = weakref.ref(dist.group.WORLD)
del loss, optimizer, model
dist.destroy_process_group()
assert group() is None
"""
