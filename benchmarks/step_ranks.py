"""``python -m benchmarks.step_ranks REDUCTION NPROC SHARDS EPOCHS``: pairs of digits trainings."""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import train.loop
from benchmarks.forked_ranks import answer, run_ranks, take_in_turn
from benchmarks.peers import raw_ddp_digits
from fabric_train.worker_env import parse_worker_env
from train.config import parse_config


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
    answer(lambda: take_pair(reduction, nproc, shards, epochs))
