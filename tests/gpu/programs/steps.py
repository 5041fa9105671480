"""Times steps of the strategy ddp and of raw DDP in turn, in the same process."""

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place

dry = os.environ.get("GPU_DRY") == "1"
device = torch.device("cpu") if dry else torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # cuda
WIDTH, STEPS = (64, 20) if dry else (2048, 200)
if not dry:
    torch.cuda.set_device(device)  # cuda
dist.init_process_group("gloo" if dry else "nccl")


def build() -> nn.Module:
    layers = (nn.Linear(WIDTH, WIDTH), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def optimize(weights):
    return torch.optim.AdamW(weights, fused=not dry)  # cuda


strategy = make_strategy("ddp")
strategy.setup(build().to(device), optimize, Place(device=device))
raw = DistributedDataParallel(build().to(device), gradient_as_bucket_view=True)
optimizer = optimize(raw.parameters())
inputs = torch.randn(64, WIDTH, device=device)


def step_ours(number: int) -> None:
    strategy.backward(strategy.model(inputs).square().mean())
    strategy.step(number)


def step_raw(_number: int) -> None:
    raw(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(step) -> tuple[float, int]:
    times = []
    if not dry:
        torch.cuda.reset_peak_memory_stats()  # cuda
    for number in range(STEPS):
        began = time.perf_counter()
        step(number)
        if not dry:
            torch.cuda.synchronize()  # cuda
        times.append(time.perf_counter() - began)
    return statistics.median(times), 0 if dry else torch.cuda.max_memory_allocated()  # cuda


measure(step_ours), measure(step_raw)
ours_s, ours_bytes = measure(step_ours)
raw_s, raw_bytes = measure(step_raw)
print(
    f"ours {ours_s * 1e3:.3f} ms, {ours_bytes >> 20} MiB; raw DDP {raw_s * 1e3:.3f} ms, "
    f"{raw_bytes >> 20} MiB; ratio {ours_s / raw_s:.3f}",
    flush=True,
)
os._exit(0)
