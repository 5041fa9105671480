"""Times one save or one resume: ``FOLDER {asynchronous,synchronous} MB`` or ``FOLDER resume STEP``.

Writes the seconds into ``seconds.json``. A save is the third of its process: the first two allocate
what all later ones use again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.checkpointing.saver import Saver
from fabric_train.checkpointing.snapshot import capture
from fabric_train.sampling.sampler import GlobalBatchSampler

WIDTH = 512
WARM = 2
SAMPLES, BATCH, SHARDS = 100_000, 64, 4


def build(megabytes: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that has made one step of AdamW: weights and two moments make up the size."""
    layer_bytes = 3 * 4 * WIDTH * WIDTH
    layers = max(1, round(megabytes * 1e6 / layer_bytes))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def time_asynchronous(folder: Path, megabytes: float) -> float:
    """Until ``save`` returns; the commit before it is over by then, as it is in a training."""
    model, optimizer = build(megabytes)
    saver = Saver(folder)
    saver.resume(model, optimizer)
    for step in range(1, WARM + 2):
        saver.wait()
        began = time.perf_counter()
        saver.save(step, model, optimizer)
        seconds = time.perf_counter() - began
    result = saver.wait()
    if result is None or result.path is None:
        raise RuntimeError(f"not saved: {result}")
    return seconds


def time_synchronous(folder: Path, megabytes: float) -> float:
    """DCP's own save with its own defaults, of the same tensors."""
    model, optimizer = build(megabytes)
    for step in range(WARM + 1):
        began = time.perf_counter()
        dcp.save(dict(capture(model, optimizer).tensors), checkpoint_id=folder / str(step))
        seconds = time.perf_counter() - began
    return seconds


def time_resume(folder: Path, step: int) -> float:
    """Reads a checkpoint of ``step`` and the batch that follows it."""
    model, optimizer = build(1)
    saver = Saver(folder)
    saver.resume(model, optimizer)
    saver.save(step, model, optimizer, block=True)
    dataset = TensorDataset(torch.arange(SAMPLES))
    began = time.perf_counter()
    found = Saver(folder).resume(*build(1))
    if found is None:
        raise RuntimeError("nothing to resume from")
    sampler = GlobalBatchSampler(
        size=SAMPLES,
        global_batch_size=BATCH,
        virtual_shards=SHARDS,
        rank=0,
        world_size=1,
        seed=0,
    )
    sampler.seek(first_step=found.step, stop_step=found.step + 1, first_sample=found.step * BATCH)
    next(iter(DataLoader(dataset, batch_size=None, sampler=sampler)))
    return time.perf_counter() - began


def main(name: str, what: str, number: str) -> None:
    """Times and writes."""
    folder = Path(name)
    times = {"asynchronous": time_asynchronous, "synchronous": time_synchronous}
    if what == "resume":
        seconds = time_resume(folder / "checkpoints", int(number))
    else:
        seconds = times[what](folder / "checkpoints", float(number))
    (folder / "seconds.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
