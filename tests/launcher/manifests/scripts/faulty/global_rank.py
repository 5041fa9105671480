import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from mydata import Rows


def main():
    dist.init_process_group(backend="nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)  # fault: rank-as-device
    device = torch.device(f"cuda:{rank}")  # fault: rank-as-device
    model = torch.nn.Linear(4, 4).to(device)
    model = DistributedDataParallel(model, device_ids=[rank])  # fault: rank-as-device
    sampler = DistributedSampler(Rows())  # fault: no-set-epoch
    loader = DataLoader(Rows(), batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if os.path.exists("rows.pt"):
        model.load_state_dict(torch.load("rows.pt", map_location=device, weights_only=True))
    for epoch in range(5):
        for x in loader:
            optimizer.zero_grad()
            model(x.to(device)).mean().backward()
            optimizer.step()
        if rank == 0:
            torch.save(model.state_dict(), "rows.pt")  # fault: relative-checkpoint


main()
