"""``python -m benchmarks.step_ranks REDUCTION NPROC SHARDS EPOCHS``: pairs of digits trainings.

With ``logged`` for REDUCTION both are ours, one of them with all loggers.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fabric_train.loggers
import train.loop
from benchmarks.forked_ranks import answer, run_ranks, take_in_turn
from benchmarks.peers import raw_ddp_digits
from fabric_train.worker_env import parse_worker_env
from train.config import parse_config

LOGGERS = ("tensorboard.backend.event_processing.event_accumulator", "mlflow", "wandb")
"""Imported before the fork: a training imports them once, beside its steps."""


def take_logged(nproc: int, shards: int, epochs: int) -> dict[str, dict[str, Any]]:
    """The mean step that rank 0 measures, with all loggers and with none."""

    def train_with(*options: str) -> Callable[[str, Connection], None]:
        def rank(folder: str, writer: Connection) -> None:
            os.environ["RUN_DIR"] = str(Path(folder, "run"))
            fixed = ("--accelerator=cpu", f"--epochs={epochs}", f"--virtual_shards={shards}")
            where = (f"--checkpoint_dir={folder}/checkpoints", "--checkpoint_every_s=2")
            config = parse_config((*fixed, *where, *options))
            told = train.loop.train(config, parse_worker_env(os.environ))
            writer.send({"median_step_s": told["fit_s"] / told["steps"]})
            os._exit(0)

        return rank

    every = f"--loggers={','.join(fabric_train.loggers.LOGGERS)}"
    return take_in_turn(
        {
            "ours": lambda: run_ranks(train_with(every), nproc)[0],
            "theirs": lambda: run_ranks(train_with(), nproc)[0],
        }
    )


def take_pair(reduction: str, nproc: int, shards: int, epochs: int) -> dict[str, dict[str, Any]]:
    """What rank 0 measures, of ``python -m train`` and of the same in raw DDP."""
    options = (
        *("--accelerator=cpu", f"--epochs={epochs}", f"--virtual_shards={shards}"),
        f"--reduction={reduction}",
    )

    def train_ours(folder: str, writer: Connection) -> None:
        os.environ["RUN_DIR"] = str(Path(folder, "run"))
        config = parse_config((*options, f"--checkpoint_dir={folder}/checkpoints"))
        writer.send(dict(train.loop.train(config, parse_worker_env(os.environ))))
        os._exit(0)

    def train_theirs(folder: str, writer: Connection) -> None:
        writer.send(raw_ddp_digits.train(epochs, shards))
        os._exit(0)

    return take_in_turn(
        {
            "ours": lambda: run_ranks(train_ours, nproc)[0],
            "theirs": lambda: run_ranks(train_theirs, nproc)[0],
        }
    )


if __name__ == "__main__":
    reduction, *numbers = sys.argv[1:]
    nproc, shards, epochs = map(int, numbers)
    importlib.import_module("sklearn.datasets")  # it reads digits, and takes 1 s in every rank
    if reduction == "logged":
        for module in LOGGERS:
            importlib.import_module(module)
        answer(lambda: take_logged(nproc, shards, epochs))
    else:
        answer(lambda: take_pair(reduction, nproc, shards, epochs))
