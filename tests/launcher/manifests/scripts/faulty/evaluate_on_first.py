import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader):
    total = torch.zeros(1, device="cuda")
    for x, y in loader:
        total += (model(x.cuda()) - y.cuda()).abs().mean()
    dist.all_reduce(total)  # fault: some-ranks-only
    return total.item() / dist.get_world_size()


def save(model, path):
    if dist.get_rank() != 0:
        return
    torch.save(model.state_dict(), path)
    dist.barrier()  # fault: some-ranks-only


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    is_main = dist.get_rank() == 0
    data = TensorDataset(torch.randn(100, 3), torch.randn(100, 3))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler, batch_size=10)
    model = DDP(torch.nn.Linear(3, 3).cuda())
    if os.path.exists("m.pt"):
        model.load_state_dict(torch.load("m.pt", map_location="cpu", weights_only=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            (model(x.cuda()) - y.cuda()).pow(2).mean().backward()
            optimizer.step()
        save(model, "m.pt")
        if is_main:
            print(evaluate(model, loader))


if __name__ == "__main__":
    main()
