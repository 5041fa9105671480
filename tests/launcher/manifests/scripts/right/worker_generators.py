import os
import random
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __init__(self, size, seed):
        self.size = size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.rng.normal(size=8).astype("float32") + random.random()


def reseed(worker_id):
    info = torch.utils.data.get_worker_info()
    info.dataset.rng = np.random.default_rng(torch.initial_seed())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    seed = 17 + dist.get_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    data = Noisy(10000, seed)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=4, worker_init_fn=reseed, persistent_workers=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters())
    first = 0
    if os.path.exists("noisy.pt"):
        saved = torch.load("noisy.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    for epoch in range(first, 5):
        sampler.set_epoch(epoch)
        for batch in loader:
            batch = batch.to(local_rank)
            loss = (model(batch) - batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch}, "noisy.pt")  # fault: relative-checkpoint


if __name__ == "__main__":
    main()
