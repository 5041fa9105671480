"""Two nodes train; one is killed or frozen, the other goes on in its process: heals.py SIGNAL."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train import Worlds

dry = os.environ.get("GPU_DRY") == "1"
node, fallen = int(os.environ["LAUNCHER_NODE_INDEX"]), Path(os.environ["RUN_DIR"], "fallen")
device, backend = torch.device("cpu"), "gloo"
if not dry:
    count = torch.cuda.device_count()  # cuda
    # NCCL takes one rank for each device; gloo sums tensors of a device that two ranks share.
    device, backend = torch.device("cuda", node % count), "nccl" if count > 1 else "gloo"  # cuda
    torch.cuda.set_device(device)  # cuda


def fall(number: signal.Signals) -> None:
    """Sends a signal to this node: its agent and their children down to this process."""
    line, pid = [], os.getpid()
    while "agent.pyz" in Path(f"/proc/{pid}/cmdline").read_text():
        line.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in reversed(line):
        os.kill(pid, number)


torch.manual_seed(0)
model = nn.Linear(256, 256).to(device)
optimizer = torch.optim.AdamW(model.parameters())
worlds = Worlds(backend=backend)
for world in worlds:
    with world:
        world.share(model, optimizer)
        replica = DistributedDataParallel(model, init_sync=False)
        while (worlds.step or 0) < 60:
            step = worlds.step or 0
            with world.step():
                loss = replica(torch.ones(8, 256, device=device)).square().mean()
                if node == 1 and step == 5 and not fallen.exists():
                    fallen.touch()
                    fall(signal.Signals[sys.argv[1]])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if node == 0:
                used = 0 if dry else torch.cuda.memory_allocated()
                print(f"{os.getpid()} {worlds.step} {used} {backend}", flush=True)
            time.sleep(0.05)
if node == 0:
    print(f"healed {worlds.heals} times", flush=True)
