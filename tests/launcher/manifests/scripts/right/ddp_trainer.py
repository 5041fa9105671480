import os
import argparse
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed import init_process_group, destroy_process_group


class ToyData(Dataset):
    def __init__(self, size):
        self.rows = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def ddp_setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model.to(self.local_rank)
        self.loader, self.optimizer, self.save_every = loader, optimizer, save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self.load_snapshot(snapshot_path)
        self.model = DDP(self.model, device_ids=[self.local_rank])

    def load_snapshot(self, path):
        snapshot = torch.load(path, map_location=f"cuda:{self.local_rank}", weights_only=True)
        self.model.load_state_dict(snapshot["model"])
        self.epochs_run = snapshot["epoch"]

    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for x, y in self.loader:
            self.run_batch(x.to(self.local_rank), y.to(self.local_rank))

    def save_snapshot(self, epoch):
        torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, self.snapshot_path)  # fault: relative-checkpoint

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self.run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)


def main(epochs, save_every, batch_size, path):
    ddp_setup()
    data = ToyData(2048)
    model = torch.nn.Linear(20, 1)
    loader = DataLoader(data, batch_size=batch_size, pin_memory=True, shuffle=False, sampler=DistributedSampler(data))
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3), save_every, path)
    trainer.train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    args = parser.parse_args()
    main(args.epochs, 5, args.batch_size, "snapshot.pt")
