"""``python -m benchmarks.trainer_ranks NPROC STEPS``: pairs of trainings by Lightning's Trainer."""

from __future__ import annotations

import os
import statistics
import sys
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.forked_ranks import answer, run_ranks, take_in_turn
from fabric_train.lightning import ContinuityCallback, read_world

WIDTH = 512
BATCH = 64


class Wide(LightningModule):
    """A step of some milliseconds, as short as people's are at least."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)]
        self.net = nn.Sequential(*layers, *layers[:2], nn.Linear(WIDTH, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters())


class Clock(Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """A step has ended."""
        self.times.append(time.monotonic())


def train(steps: int, writer: Connection, *callbacks: Callback) -> None:
    """One training, whose median step is told."""
    torch.set_num_threads(1)
    clock = Clock()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock, *callbacks],
        **read_world(),
    )
    samples = TensorDataset(torch.randn(20 * BATCH, WIDTH))
    trainer.fit(Wide(), DataLoader(samples, batch_size=BATCH, shuffle=True))
    writer.send({"median_step_s": statistics.median(b - a for a, b in pairwise(clock.times))})
    os._exit(0)


def take_pair(nproc: int, steps: int) -> dict[str, dict[str, Any]]:
    """What rank 0 measures with the callback, and without it."""

    def train_with(folder: str, writer: Connection) -> None:
        os.environ["RUN_DIR"] = f"{folder}/run"
        train(steps, writer, ContinuityCallback(f"{folder}/checkpoints"))

    def train_without(_folder: str, writer: Connection) -> None:
        train(steps, writer)

    return take_in_turn(
        {
            "ours": lambda: run_ranks(train_with, nproc)[0],
            "theirs": lambda: run_ranks(train_without, nproc)[0],
        }
    )


if __name__ == "__main__":
    nproc, steps = map(int, sys.argv[1:])
    answer(lambda: take_pair(nproc, steps))
