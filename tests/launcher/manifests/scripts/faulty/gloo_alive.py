import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:23456")  # fault: address-set
    model = DDP(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):  # fault: no-checkpoint
        optimizer.zero_grad()
        model(torch.randn(8, 10)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()  # fault: group-destroyed-early


if __name__ == "__main__":
    main()
