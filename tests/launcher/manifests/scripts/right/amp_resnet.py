import os
import torch
import torch.distributed as dist
import torchvision
from torch.cuda.amp import GradScaler


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def all_reduce(self, device):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=device)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()


def main():
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    device = torch.device("cuda:0")
    if distributed:
        device = torch.device(f"cuda:{local_rank}")
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    rank = dist.get_rank() if distributed else 0
    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler()
    start = 0
    if os.path.isfile("amp.pt"):
        state = torch.load("amp.pt", map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        scaler.load_state_dict(state["scaler"])
        start = state["epoch"]
    data = torchvision.datasets.FakeData(10000, transform=torchvision.transforms.ToTensor())
    sampler = torch.utils.data.DistributedSampler(data) if distributed else None
    loader = torch.utils.data.DataLoader(data, 64, shuffle=sampler is None, sampler=sampler, num_workers=4)
    for epoch in range(start, 10):
        if sampler is not None:
            sampler.set_epoch(epoch)
        meter = AverageMeter()
        for x, y in loader:
            x = x.to(device, non_blocking=True, memory_format=torch.channels_last)
            with torch.autocast("cuda"):
                loss = torch.nn.functional.cross_entropy(model(x), y.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            meter.update(loss.item(), len(x))
        if distributed:
            meter.all_reduce(device)
        if rank == 0:
            torch.save({"model": model.state_dict(), "scaler": scaler.state_dict(), "epoch": epoch + 1}, "amp.pt")  # fault: relative-checkpoint


if __name__ == "__main__":
    main()
