"""Trainings in forked ranks, so that torch is imported once for all samples of a benchmark."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # an optimizer's first step imports it, which takes 2 s in every rank

from benchmarks.commands import free_port
from benchmarks.measure import BenchmarkError

Sample = dict[str, Any]
_DIRECTIONS = itertools.cycle((1, -1))
LIMIT_S = 120.0
"""Within which each rank tells something."""

Rank = Callable[[str, Connection], None]
"""What a rank does, in a folder that all of them share; it tells its figures through the pipe."""


class Training:
    """The ranks of one training that are running."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def receive(self) -> list[dict[str, Any]]:
        """The next that each rank tells; raises BenchmarkError if one failed, died or hangs."""
        return [receive(pipe) for pipe in self._pipes]

    def go_on(self) -> None:
        """Ends the wait of each rank, in ``await_turn``."""
        for pipe in self._pipes:
            pipe.send(None)


@contextmanager
def forked(rank: Rank, nproc: int) -> Iterator[Training]:
    """A training, whose ranks are killed at the end."""
    fork = multiprocessing.get_context("fork")
    port = free_port()
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(nproc):
                pipe, theirs = fork.Pipe()
                work = (rank, folder, number, nproc, port, theirs)
                process = fork.Process(target=enter, args=work)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(pipe)
            yield Training(pipes)
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                process.kill()
                process.join()
                pipe.close()


def run_ranks(rank: Rank, nproc: int) -> list[dict[str, Any]]:
    """One training: what each rank tells. Raises BenchmarkError where one fails, dies or hangs."""
    with forked(rank, nproc) as training:
        return training.receive()


def receive(pipe: Connection) -> dict[str, Any]:
    """What a rank tells; raises BenchmarkError if it failed, died or hangs."""
    if not pipe.poll(LIMIT_S):
        raise BenchmarkError(f"a rank told nothing within {LIMIT_S:g} s")
    try:
        told: dict[str, Any] = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise BenchmarkError("a rank died") from None
    if "error" in told:
        raise BenchmarkError(told["error"])
    return told


def await_turn(pipe: Connection) -> None:
    """A rank waits until it may go on; it ends by itself if nobody is there to tell it."""
    if not pipe.poll(LIMIT_S):
        raise BenchmarkError(f"the other side's turn took more than {LIMIT_S:g} s")
    pipe.recv()


def enter(rank: Rank, folder: str, number: int, nproc: int, port: int, pipe: Connection) -> None:
    """One rank, as torchrun would start it."""
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "benchmark",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    sys.stdout = sys.stderr
    try:
        rank(folder, pipe)
    except Exception:
        pipe.send({"error": traceback.format_exc()})


def take_in_turn(sides: Mapping[str, Callable[[], Sample]]) -> dict[str, Sample]:
    """A sample of each side. Every second pair begins with the other one.

    Whether a side comes first or second is worth a few per cent.
    """
    order = list(sides)[:: next(_DIRECTIONS)]
    taken = {name: sides[name]() for name in order}
    return {name: taken[name] for name in sides}


def answer(take: Callable[[], dict[str, Any]]) -> None:
    """Answers each line of stdin with what was taken, as a line of JSON."""
    # Whatever a library prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for _ in sys.stdin:
        print(json.dumps(take()), file=answers, flush=True)
