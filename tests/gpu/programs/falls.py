"""A worker that is killed in its first start, and not in the second."""

import os
import signal

import torch

device = "cpu" if os.environ.get("GPU_DRY") == "1" else "cuda"
total = (torch.ones(1 << 20, device=device) * 2).sum().item()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
assert total == 1 << 21
print(f"second start on {device}", flush=True)
