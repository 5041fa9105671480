"""One step under torch's profiler, whose trace is read again."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place

dry = os.environ.get("GPU_DRY") == "1"
device = torch.device("cpu") if dry else torch.device("cuda", 0)  # cuda
strategy = make_strategy("ddp")
strategy.setup(nn.Linear(64, 64).to(device), torch.optim.AdamW, Place(device=device))
activities = [ProfilerActivity.CPU]
if not dry:
    activities.append(ProfilerActivity.CUDA)  # cuda
with profile(activities=activities) as profiler:
    strategy.backward(strategy.model(torch.ones(8, 64, device=device)).square().mean())
    strategy.step(0)
    if not dry:
        torch.cuda.synchronize()  # cuda
path = Path(os.environ["RUN_DIR"], "trace.json")
profiler.export_chrome_trace(str(path))
kinds = [event.get("cat") for event in json.loads(path.read_text())["traceEvents"]]
assert "cpu_op" in kinds
assert dry or "kernel" in kinds, sorted({*map(str, kinds)})  # cuda
print(f"{kinds.count('cpu_op')} events of the CPU, {kinds.count('kernel')} kernels", flush=True)
