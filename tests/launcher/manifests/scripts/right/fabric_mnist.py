import argparse
from os import path
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch.optim.lr_scheduler import StepLR
from torchvision.datasets import MNIST
from torchvision import transforms


def run(hparams):
    fabric = Fabric(accelerator="gpu", devices=hparams.devices, num_nodes=hparams.nodes)
    fabric.launch()
    seed_everything(hparams.seed)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.13,), (0.31,))])
    with fabric.rank_zero_first(local=False):
        train_set = MNIST("data", download=True, train=True, transform=transform)
    loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model, optimizer = fabric.setup(model, optimizer)
    scheduler = StepLR(optimizer, step_size=1)
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    if path.exists("last.ckpt"):
        fabric.load("last.ckpt", state)
    for epoch in range(state["epoch"], hparams.epochs):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            fabric.backward(loss)
            optimizer.step()
        scheduler.step()
        state["epoch"] = epoch + 1
        fabric.save("last.ckpt", state)
        losses = fabric.all_gather(loss).mean()
        if fabric.is_global_zero:
            print(epoch, losses.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    run(parser.parse_args())
