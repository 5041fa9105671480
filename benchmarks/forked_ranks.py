"""Trainings in forked ranks, so that torch is imported once for all samples of a benchmark."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # an optimizer's first step imports it, which takes 2 s in every rank

from benchmarks.measure import BenchmarkError

Sample = dict[str, Any]
_DIRECTIONS = itertools.cycle((1, -1))
LIMIT_S = 120.0
"""For one training."""

Rank = Callable[[str, Connection], None]
"""What a rank does, in a folder that all of them share; it tells its figures through the pipe."""


def run_ranks(rank: Rank, nproc: int) -> list[dict[str, Any]]:
    """One training: what each rank tells. Raises BenchmarkError where one fails, dies or hangs."""
    fork = multiprocessing.get_context("fork")
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for number in range(nproc):
            reader, writer = fork.Pipe(duplex=False)
            work = (rank, folder, number, nproc, port, writer)
            process = fork.Process(target=enter, args=work)
            process.start()
            writer.close()
            ranks.append((process, reader))
        try:
            return [receive(reader) for _, reader in ranks]
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()


def receive(reader: Connection) -> dict[str, Any]:
    """What a rank tells; raises BenchmarkError if it failed, died or hangs."""
    if not reader.poll(LIMIT_S):
        raise BenchmarkError(f"a rank told nothing within {LIMIT_S:g} s")
    try:
        told: dict[str, Any] = reader.recv()
    except EOFError:
        raise BenchmarkError("a rank died") from None
    if "error" in told:
        raise BenchmarkError(told["error"])
    return told


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def enter(rank: Rank, folder: str, number: int, nproc: int, port: int, writer: Connection) -> None:
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
        rank(folder, writer)
    except Exception:
        writer.send({"error": traceback.format_exc()})


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
