"""A loop with Hugging Face's accelerate that survives what clusters do to it.

    launcher run examples/accelerate_loop.py --nproc-per-node 2 --set checkpoint_dir=checkpoints

What comes from this project is marked with ``# safe``; all else is a loop as people write it.
"""

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fabric_train import seed_generators  # safe
from fabric_train.trainers import Companion, cut_loader  # safe


def main(epochs: int, dropout: float) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    inputs = torch.randn(490, 8)
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    loader = DataLoader(dataset, batch_size=12, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    at = {"epoch": 0, "batch": 0, "step": 0}
    safe = Companion(os.environ.get("CHECKPOINT_DIR", "checkpoints"))  # safe
    found = safe.open(  # safe
        model,
        lambda folder: accelerator.save_state(str(folder)),
        lambda: {"at": dict(at)},
        kind="waves",
        seed=0,
        world_size=accelerator.num_processes,
    )
    at |= safe.state.get("at", {})  # safe
    # Not by accelerate, whose shares depend on the number of processes.
    loader = cut_loader(loader, safe, lambda: (at["epoch"], at["batch"]))  # safe
    model, optimizer = accelerator.prepare(model, optimizer)
    if found:  # safe
        accelerator.load_state(str(found.path))  # safe
    safe.begin(at["step"])  # safe

    while at["epoch"] < epochs:
        for batch, targets in loader:
            safe.before_batch(at["step"])  # safe: saves, and stops where it is asked to
            seed_generators(safe.seed, at["step"], accelerator.process_index)  # safe: dropout
            output = model(batch.to(accelerator.device))
            loss = nn.functional.mse_loss(output, targets.to(accelerator.device))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            mean = accelerator.reduce(loss.detach(), "mean").item()
            accelerator.print(f"step {at['step']} loss {mean!r}", flush=True)
            at["batch"] += 1
            at["step"] += 1
            safe.after_batch(at["step"], loss.item)  # safe: for launcher report
        at |= {"epoch": at["epoch"] + 1, "batch": 0}
    safe.finish(at["step"])  # safe
    safe.close()  # safe
    accelerator.end_training()


if __name__ == "__main__":
    main(epochs=5, dropout=float(sys.argv[1]) if sys.argv[1:] else 0.1)
