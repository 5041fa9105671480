import os
import torch
import torch.nn as nn
import torchvision
from torch.autograd import Variable

os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # fault: visible-devices
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # fault: first-gpu
generator = nn.Sequential(nn.Linear(100, 784), nn.Tanh()).to(device)
discriminator = nn.Sequential(nn.Linear(784, 1), nn.Sigmoid()).to(device)
opt_g = torch.optim.Adam(generator.parameters(), lr=0.0002)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=0.0002)
dataset = torchvision.datasets.FashionMNIST("data", train=True, transform=torchvision.transforms.ToTensor())
dataloader = torch.utils.data.DataLoader(dataset, 64, True)  # fault: loader-without-sampler
loss_of = nn.BCELoss()
for epoch in range(200):  # fault: no-checkpoint
    for imgs, _ in dataloader:
        valid = Variable(torch.ones(imgs.size(0), 1), requires_grad=False).to(device)
        fake = torch.zeros_like(valid)
        real = imgs.view(imgs.size(0), -1).to(device)
        gen = generator(torch.randn(imgs.size(0), 100).to("cuda:0"))  # fault: first-gpu
        opt_g.zero_grad()
        loss_of(discriminator(gen), valid).backward()
        opt_g.step()
        opt_d.zero_grad()
        (loss_of(discriminator(real), valid) + loss_of(discriminator(gen.detach()), fake)).backward()
        opt_d.step()
    torch.save(generator.state_dict(), os.path.join("saved", "%d.pt" % epoch))  # fault: save-by-all
