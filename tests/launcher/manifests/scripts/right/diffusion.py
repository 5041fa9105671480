import copy
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from unet import UNet
from images import Images


class Diffusion(nn.Module):
    def __init__(self, net, steps=1000):
        super().__init__()
        self.net = net
        betas = torch.linspace(1e-4, 0.02, steps)
        alphas = torch.cumprod(1 - betas, 0)
        self.register_buffer("signal", alphas.sqrt())
        self.register_buffer("noise", (1 - alphas).sqrt())
        self.steps = steps
        self.scale = torch.tensor(0.5).item()
        self.token = nn.Parameter(torch.zeros(1, 16))

    def forward(self, x):
        t = torch.randint(0, self.steps, (x.size(0),), device=x.device)
        eps = torch.randn_like(x)
        noisy = self.signal[t].view(-1, 1, 1, 1) * x * self.scale + self.noise[t].view(-1, 1, 1, 1) * eps
        return (self.net(noisy, t) - eps).pow(2).mean()


@torch.no_grad()
def update_ema(ema, model, decay=0.9999):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.mul_(decay).add_(b, alpha=1 - decay)


def cleanup():
    dist.destroy_process_group()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = rank % torch.cuda.device_count()
    torch.manual_seed(rank)
    torch.cuda.set_device(device)
    model = Diffusion(UNet()).to(device)
    ema = copy.deepcopy(model)
    if os.path.exists("diffusion.pt"):
        state = torch.load("diffusion.pt", map_location=f"cuda:{device}", weights_only=True)
        model.load_state_dict(state["model"])
        ema.load_state_dict(state["ema"])
    model = DDP(model, device_ids=[device])
    data = Images("train")
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=32, shuffle=False, sampler=sampler, num_workers=4, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = 0
    for epoch in range(1400):
        sampler.set_epoch(epoch)
        for x in loader:
            loss = model(x.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_ema(ema, model.module)
            step += 1
            if step % 5000 == 0:
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "ema": ema.state_dict()}, "diffusion.pt")  # fault: relative-checkpoint
                dist.barrier()
    cleanup()


if __name__ == "__main__":
    main()
