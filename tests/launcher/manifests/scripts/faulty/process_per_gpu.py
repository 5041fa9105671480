import multiprocessing
import os
import torch
import torch.distributed as dist
import torch.nn as nn


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def run(rank, size):
    torch.manual_seed(1234)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):  # fault: no-checkpoint
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        average_gradients(model)
        optimizer.step()


def init_process(rank, size, fn, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # fault: address-set
    os.environ["MASTER_PORT"] = "29501"  # fault: address-set
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)


if __name__ == "__main__":
    processes = []
    for rank in range(2):
        p = multiprocessing.Process(target=init_process, args=(rank, 2, run))  # fault: own-world
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
