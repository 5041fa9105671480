"""``python -m benchmarks.recorder_ranks NPROC EPOCHS``: pairs of raw DDP trainings of digits."""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed.distributed_c10d as c10d

from benchmarks.forked_ranks import answer, run_ranks, take_in_turn
from benchmarks.peers import raw_ddp_digits
from launcher.agent.worker import recorder


def take_pair(nproc: int, epochs: int) -> dict[str, dict[str, Any]]:
    """What rank 0 measures with the recorder, and without one."""

    def train_with(folder: str, writer: Connection) -> None:
        os.environ.update(dict.fromkeys(recorder.VARIABLES, recorder.BUFFER))
        recorder.answer_from_first_group(c10d, Path(folder, f"heartbeat-{os.getpid()}"))
        writer.send(raw_ddp_digits.train(epochs, nproc))
        os._exit(0)

    def train_without(folder: str, writer: Connection) -> None:
        os.environ.update(dict.fromkeys(recorder.VARIABLES, "0"))
        writer.send(raw_ddp_digits.train(epochs, nproc))
        os._exit(0)

    return take_in_turn(
        {
            "ours": lambda: run_ranks(train_with, nproc)[0],
            "theirs": lambda: run_ranks(train_without, nproc)[0],
        }
    )


if __name__ == "__main__":
    nproc, epochs = map(int, sys.argv[1:])
    importlib.import_module("sklearn.datasets")  # it reads digits, and takes 1 s in every rank
    answer(lambda: take_pair(nproc, epochs))
