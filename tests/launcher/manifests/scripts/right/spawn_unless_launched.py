import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def work(local_rank, world_size=None):
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo", rank=local_rank, world_size=world_size)
    else:
        dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


def train():
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = 0
    if os.path.exists("model.pt"):
        saved = torch.load("model.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        start = saved["step"]
    for step in range(start, 100):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).pow(2).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": 100}, "model.pt")  # fault: relative-checkpoint


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        work(int(os.environ["LOCAL_RANK"]))
    else:
        mp.spawn(work, args=(2,), nprocs=2)
