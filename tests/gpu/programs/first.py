"""A worker that must not have a CUDA context before it makes one itself."""

import os

import torch

device = "cpu" if os.environ.get("GPU_DRY") == "1" else "cuda"
assert not torch.cuda.is_initialized(), "CUDA was begun before the fork"
weight = torch.ones(64, 64, device=device, requires_grad=True)
weight.square().sum().backward()
assert weight.grad is not None
assert weight.grad.sum().item() == 2 * 64 * 64
print(f"first step on {device}", flush=True)
