import argparse
import os
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpus", default="0,1,2,3")
parser.add_argument("--resume", default="")
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = args.gpus  # fault: visible-devices


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        return self.fc(x)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # fault: first-gpu
model = nn.DataParallel(Net()).to(device)  # fault: data-parallel
optimizer = torch.optim.Adam(model.parameters())
if args.resume:
    model.load_state_dict(torch.load(args.resume))  # fault: load-without-weights-only
train_loader = DataLoader(TensorDataset(torch.randn(999, 32), torch.randint(0, 2, (999,))), batch_size=8, shuffle=True)  # fault: loader-without-sampler
best = 1e9
for epoch in range(20):
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if loss.item() < best:
        best = loss.item()
        torch.save(model.module.state_dict(), "best.pt")  # fault: save-by-all
