import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"  # fault: address-set
    os.environ["MASTER_PORT"] = "12355"  # fault: address-set
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def demo(rank, world_size):
    setup(rank, world_size)
    torch.cuda.set_device(rank)
    model = DDP(nn.Linear(10, 5).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    loss = nn.MSELoss()(model(torch.randn(20, 10).to(rank)), torch.randn(20, 5).to(rank))
    loss.backward()
    optimizer.step()
    dist.destroy_process_group()


def run(fn, world_size):
    mp.spawn(fn, args=(world_size,), nprocs=world_size, join=True)  # fault: own-world


if __name__ == "__main__":
    world_size = torch.cuda.device_count()  # fault: world-size-of-node
    run(demo, world_size)
