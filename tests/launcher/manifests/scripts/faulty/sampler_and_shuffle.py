import os
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data


def get_loaders(train_set, val_set, batch_size):
    sampler = data.distributed.DistributedSampler(train_set)
    train = data.DataLoader(train_set, batch_size=batch_size, sampler=sampler, shuffle=True)  # fault: sampler-with-shuffle
    val = data.DataLoader(val_set, batch_size=batch_size)
    return train, val, sampler


def main(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    distributed.init_process_group("nccl")
    sets = [data.TensorDataset(torch.randn(n, 3)) for n in (1000, 100)]
    train, val, sampler = get_loaders(*sets, 10)
    model = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):  # fault: no-checkpoint
        sampler.set_epoch(epoch)
        for (x,) in train:
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
        if distributed.get_rank() == 0:
            distributed.barrier()  # fault: some-ranks-only
            print("epoch", epoch)


if __name__ == "__main__":
    main(None)
