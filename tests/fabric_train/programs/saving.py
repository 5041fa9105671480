"""Trains a few steps with plain torch, replicated or sharded, and saves as a reader's loop would.

Usage: saving.py FOLDER {ddp,fsdp} STEPS; prints a digest of weights and moments at its start and
its end, on rank 0.
"""

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fabric_train.retention import Interval
from fabric_train.saver import Saver
from fabric_train.snapshot import capture


def build(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(dist.get_rank())  # ranks agree by the checkpoint, or not at all
    model: nn.Module = nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 3))
    if kind == "fsdp":
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    else:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    for _, tensor in sorted(capture(model, optimizer).tensors.items()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def main(folder: str, kind: str, steps: str) -> None:
    dist.init_process_group("gloo")
    model, optimizer = build(kind)
    saver = Saver(Path(folder), config={"kind": kind}, interval=Interval(steps=2))
    resumed = saver.resume(model, optimizer)
    step = resumed.step if resumed else 0
    tell("began", step, digest(model, optimizer) if resumed else "fresh")
    while step < int(steps):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if saver.is_due(step):
            saver.save(step, model, optimizer)
    if not resumed or step > resumed.step:
        result = saver.save(step, model, optimizer, block=True)
        assert result is None or result.path, result
    tell("ended", step, digest(model, optimizer))
    dist.destroy_process_group()


def tell(*words: object) -> None:
    if dist.get_rank() == 0:
        print(*words, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
