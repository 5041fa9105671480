import os
import tarfile
import urllib.request
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def fetch(rank):
    if rank == 0:
        urllib.request.urlretrieve("https://example.org/set.tar", "set.tar")  # fault: download-without-barrier
        tarfile.open("set.tar").extractall("set")


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    dist.barrier()
    fetch(rank)
    extra = torchvision.datasets.CIFAR10("data", download=rank == 0)  # fault: download-without-barrier
    both = torch.utils.data.ConcatDataset([torchvision.datasets.ImageFolder("set"), extra])
    sampler = DistributedSampler(both)
    loader = DataLoader(both, 32, sampler=sampler)
    model = DistributedDataParallel(torchvision.models.resnet18().cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):  # fault: no-checkpoint
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
