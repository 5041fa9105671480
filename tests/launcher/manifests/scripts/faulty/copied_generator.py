import os
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Crops(Dataset):
    def __init__(self, images, seed=0):
        self.images = images
        self.rng = np.random.RandomState(seed)  # fault: worker-seeds

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        top = self.rng.randint(0, 32)
        return self.images[i][:, top : top + 32]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    crops = Crops(torch.randn(100, 3, 64))
    sampler = DistributedSampler(crops)
    loader = DataLoader(crops, batch_size=4, num_workers=8, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):  # fault: no-checkpoint
        sampler.set_epoch(epoch)
        for x in loader:
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()


main()
