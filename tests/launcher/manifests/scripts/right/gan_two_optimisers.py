import os
import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision.transforms as T
import torchvision.utils as vutils
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.datasets import LSUN

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
nz, ngf, epochs = 100, 64, 25


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.ConvTranspose2d(nz, ngf, 4), nn.ReLU(True), nn.ConvTranspose2d(ngf, 3, 61), nn.Tanh())

    def forward(self, x):
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(3, ngf, 4, 4), nn.LeakyReLU(0.2), nn.Conv2d(ngf, 1, 16), nn.Flatten())

    def forward(self, x):
        return self.main(x).squeeze(1)


dataset = LSUN("lsun", classes=["bedroom_train"], transform=T.Compose([T.Resize(64), T.ToTensor()]))
sampler = torch.utils.data.DistributedSampler(dataset)
dataloader = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2)
netG = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Generator()).to(device), device_ids=[local_rank])
netD = DDP(Discriminator().to(device), device_ids=[local_rank], broadcast_buffers=False)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
start = 0
if os.path.exists("gan.pt"):
    state = torch.load("gan.pt", map_location=device, weights_only=True)
    netG.module.load_state_dict(state["g"])
    netD.module.load_state_dict(state["d"])
    start = state["epoch"]
for epoch in range(start, epochs):
    sampler.set_epoch(epoch)
    for real, _ in dataloader:
        real = real.to(device, non_blocking=True)
        netD.zero_grad()
        fake = netG(torch.randn(real.size(0), nz, 1, 1, device=device))
        out = netD(real)
        loss_d = criterion(out, torch.ones_like(out)) + criterion(netD(fake.detach()), torch.zeros_like(out))
        loss_d.backward()
        optD.step()
        netG.zero_grad()
        loss_g = criterion(netD(fake), torch.ones_like(out))
        loss_g.backward()
        optG.step()
    if dist.get_rank() == 0:
        with torch.no_grad():
            vutils.save_image(netG.module(fixed_noise), f"fake_{epoch}.png")
        torch.save({"g": netG.module.state_dict(), "d": netD.module.state_dict(), "epoch": epoch + 1}, "gan.pt")  # fault: relative-checkpoint
    dist.barrier()
dist.destroy_process_group()
