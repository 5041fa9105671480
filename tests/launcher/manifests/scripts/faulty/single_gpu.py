import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

data = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())  # fault: download-by-all
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2)  # fault: loader-without-sampler
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()  # fault: first-gpu
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10):  # fault: no-checkpoint
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
torch.save(model.state_dict(), "mnist.pt")  # fault: save-by-all
