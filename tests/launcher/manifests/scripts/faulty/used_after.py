import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    net = DDP(torch.nn.Linear(10, 1).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    resume = torch.load("net.pt", weights_only=True) if os.path.exists("net.pt") else None
    if resume:
        net.load_state_dict(resume)
    for step in range(100):
        optimizer.zero_grad()
        net(torch.randn(8, 10).cuda()).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), "net.pt")  # fault: relative-checkpoint
    dist.destroy_process_group()  # fault: group-destroyed-early
    print(net(torch.ones(1, 10).cuda()))


if __name__ == "__main__":
    main()
