"""Trains along walks of world sizes: ``[[[world, stop step], ...], ...]`` and options, as JSON.

Each walk has a checkpoint folder of its own, and each of its worlds goes on from what the one
before it left. Prints the digest of the weights at each walk's end. Workers are forked, so that
torch is imported once for all of them.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import find_free_port, torchrun_variables
from train.config import parse_config
from train.loop import train


def main() -> None:
    """Walks and prints."""
    walks, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    for walk in walks:
        with tempfile.TemporaryDirectory() as folder:
            for world, stop_step in walk:
                train_in_processes(Path(folder), world, [*options, f"--max_steps={stop_step}"])
            metrics = json.loads(Path(folder, "metrics.json").read_text())
        assert metrics["steps"] == stop_step
        assert (metrics["resumed_from_step"] > 0) == (len(walk) > 1)
        print(metrics["weights_sha256"], flush=True)


def train_in_processes(folder: Path, world: int, options: list[str]) -> None:
    """One world, from its start to its end."""
    port = find_free_port()
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=work, args=(folder, rank, world, port, options))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit(f"a world of {world} failed: {options}")


def work(folder: Path, rank: int, world: int, port: int, options: list[str]) -> None:
    """One worker, as torchrun would start it."""
    sys.stdout = sys.stderr
    os.environ |= torchrun_variables(rank, world, port, nodes=1) | {"RUN_DIR": str(folder)}
    train(parse_config(options), parse_worker_env(os.environ))


main()
