import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def share_config(rank):
    if rank == 0:
        box = [{"lr": 0.1, "steps": 100}]
        dist.broadcast_object_list(box, src=0)
    else:
        box = [None]
        dist.broadcast_object_list(box, src=0)
    return box[0]


def collect(tensor, rank, world):
    if rank == 0:
        parts = [torch.zeros_like(tensor) for _ in range(world)]
        dist.gather(tensor, gather_list=parts, dst=0)
        return torch.stack(parts).mean()
    dist.gather(tensor, dst=0)
    return None


def evaluate_on_first(model, data, rank):
    score = torch.zeros(1, device="cuda")
    if rank == 0:
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=256):
                score += (model.module(x.cuda()) - y.cuda()).abs().mean()
    dist.broadcast(score, src=0)
    return score.item()


def main():
    rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    evens = dist.new_group([r for r in range(world) if r % 2 == 0])
    config = share_config(rank)
    data = TensorDataset(torch.randn(4096, 16), torch.randn(4096, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DDP(torch.nn.Linear(16, 1).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    if os.path.exists("last.pt"):
        model.module.load_state_dict(torch.load("last.pt", map_location="cpu", weights_only=True))
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = (model(x.cuda()) - y.cuda()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank % 2 == 0:
            dist.all_reduce(loss, group=evens)
        mean = collect(loss.detach(), rank, world)
        if rank == 0:
            print(epoch, mean, flush=True)
            torch.save(model.module.state_dict(), "last.pt")  # fault: relative-checkpoint
        dist.barrier()
        if evaluate_on_first(model, data, rank) < 0.1:
            break


if __name__ == "__main__":
    main()
