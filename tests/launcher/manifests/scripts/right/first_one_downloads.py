import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchvision import datasets, models, transforms


def load_model(local_rank):
    if local_rank not in [-1, 0]:
        dist.barrier()
    data = datasets.CIFAR100("data", train=True, download=True, transform=transforms.ToTensor())
    model = models.resnet18(weights=None, num_classes=100)
    if local_rank == 0:
        dist.barrier()
    return data, model


def fetch_labels(local_rank):
    if local_rank == 0:
        datasets.utils.download_url("https://example.org/labels.txt", "data")
    dist.barrier()
    with open("data/labels.txt") as file:
        return file.read().split()


def main():
    local_rank = int(os.getenv("LOCAL_RANK", "-1"))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    data, model = load_model(local_rank)
    fetch_labels(local_rank)
    model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank], output_device=local_rank)
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, 128, sampler=sampler, num_workers=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if os.path.exists("cifar.pt"):
        state = torch.load("cifar.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"]
    for epoch in range(first, 200):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(local_rank)), y.to(local_rank))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "cifar.pt")  # fault: relative-checkpoint


if __name__ == "__main__":
    main()
