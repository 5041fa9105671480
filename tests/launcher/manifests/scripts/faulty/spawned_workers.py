import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms


class Images(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 100

    def __getitem__(self, i):
        return self.transform(torch.zeros(3, 8, 8))


def main():
    mp.set_start_method("spawn")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")

    def collate(rows):
        return torch.stack(rows)

    data = Images(transforms.Compose([transforms.Lambda(lambda x: x * 2), transforms.Normalize(0, 1)]))  # fault: pickled-function
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 10, sampler=sampler, num_workers=2, collate_fn=collate)  # fault: pickled-function
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Conv2d(3, 3, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):  # fault: no-checkpoint
        sampler.set_epoch(epoch)
        for x in loader:
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
