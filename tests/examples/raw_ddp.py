"""Ten steps in plain DistributedDataParallel: needs torch and torchrun, nothing of this project."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(device: torch.device) -> float:
    """The loss after ten steps towards an all-zero target."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(10):
        loss = model(torch.randn(16, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    members = torch.ones(1, device=device)
    dist.all_reduce(members)
    if int(members) != int(os.environ["WORLD_SIZE"]):
        raise RuntimeError(f"{int(members)} of {os.environ['WORLD_SIZE']} workers are in the group")

    loss = train(device)
    if dist.get_rank() == 0:
        print(f"done world_size={dist.get_world_size()} loss={loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
