import math
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div)
        self.pe = pe  # fault: tensor-not-buffer

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj = nn.Linear(size, size)
        self.mask = torch.tril(torch.ones(128, 128))  # fault: tensor-not-buffer
        self.scale = torch.sqrt(torch.tensor(size / 8.0))  # fault: tensor-not-buffer

    def forward(self, x):
        att = x @ self.proj(x).transpose(1, 2) / self.scale
        return att.masked_fill(self.mask[: x.size(1), : x.size(1)] == 0, float("-inf")).softmax(-1) @ x


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")  # fault: nccl-without-device
    model = nn.Sequential(PositionalEncoding(64), Attention(64)).to(local_rank)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1000):  # fault: no-checkpoint
        optimizer.zero_grad()
        model(torch.randn(8, 32, 64).to(local_rank)).mean().backward()
        optimizer.step()
        dist.barrier()


if __name__ == "__main__":
    main()
