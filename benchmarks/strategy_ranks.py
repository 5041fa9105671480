"""``python -m benchmarks.strategy_ranks NAME NPROC``: a pair of one strategy's samples at a time.

Both sides train the language model in turn, in forked ranks: torch is imported once for all
samples. Rank 0 times rounds of steps; each rank tells its memory, and the bytes that it sent.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # an optimizer's first step imports it, which takes 2 s in every rank

import train.loop
from benchmarks.measure import BenchmarkError
from benchmarks.peers import plain_strategies
from benchmarks.peers.plain_strategies import EVERY, POWERSGD_AFTER
from fabric_train.worker_env import parse_worker_env
from train.config import parse_config

ROUND = EVERY
"""Steps of a round, in which local_sgd and diloco send once."""
ROUNDS = 5
"""Rounds that are timed; one more before them is not."""
BATCH = 8
OPTIONS = (
    *("--workload=charlm", "--model_size=small", f"--global_batch_size={BATCH}"),
    *("--accelerator=cpu", "--checkpoint_every_steps=1000000"),
)
OURS: dict[str, tuple[str, ...]] = {
    "powersgd": (f"--strategy_options.start_powerSGD_iter={POWERSGD_AFTER}",),
    "local_sgd": (f"--strategy_options.every={EVERY}",),
    "diloco": (f"--strategy_options.every={EVERY}",),
}
"""Options of our side that are not the defaults."""
LIMIT_S = 120.0
"""For one sample."""
_BYTES_SENT_AT, _TCP_INFO_LENGTH = 200, 208
"""Of ``tcpi_bytes_sent`` in Linux' ``struct tcp_info``; without the headers of packets."""


class Watch:
    """What one rank measures. ``after_step`` ends the process when it has seen enough."""

    def __init__(self, writer: Connection) -> None:
        self._writer = writer
        self._losses: list[float] = []
        self._ends: list[float] = []
        self._sent = 0
        # A value of 5 makes the largest memory so far the present one: man proc, clear_refs.
        Path("/proc/self/clear_refs").write_text("5")
        self._memory = read_memory()["RssAnon"]

    def after_step(self, loss: torch.Tensor) -> None:
        """At the end of each step."""
        if len(self._ends) == ROUND - 1:
            self._sent = read_sent()
        self._losses.append(loss.item())
        self._ends.append(time.monotonic())
        if len(self._ends) == ROUND * (ROUNDS + 1):
            self._tell()

    def _tell(self) -> NoReturn:
        sent = read_sent() - self._sent
        memory = read_memory()
        peak = memory["VmHWM"] - memory["RssFile"] - memory["RssShmem"] - self._memory
        ends = self._ends[ROUND - 1 :: ROUND]
        rounds = [after - before for before, after in itertools.pairwise(ends)]
        self._writer.send(
            {
                "step_s": statistics.median(rounds) / ROUND,
                "memory": peak,
                "sent": sent / (ROUND * ROUNDS),
                "losses": self._losses,
            }
        )
        # Without the strategy's and the group's ends, which are no part of a step.
        os._exit(0)


def read_memory() -> dict[str, int]:
    """Bytes of this process' memory by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def read_sent() -> int:
    """Bytes that this process has sent by its open TCP connections."""
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # closed meanwhile, or not of TCP
        if len(info) >= _TCP_INFO_LENGTH:
            total += struct.unpack_from("Q", info, _BYTES_SENT_AT)[0]
    return total


def train_ours(name: str, folder: str, watch: Watch) -> None:
    """``python -m train``, with our own loop around each step."""
    real = train.loop.take_step

    def take_step(*arguments: Any) -> torch.Tensor:
        loss = real(*arguments)
        watch.after_step(loss)
        return loss

    train.loop.take_step = take_step
    options = (*OPTIONS, *OURS.get(name, ()), f"--strategy={name}", f"--checkpoint_dir={folder}")
    train.loop.train(parse_config(options), parse_worker_env(os.environ))


def train_theirs(name: str, folder: str, watch: Watch) -> None:
    """The same in plain PyTorch."""
    plain_strategies.train(name, parse_config(OPTIONS), watch.after_step)


Side = Callable[[str, str, Watch], None]


def take_sample(side: Side, name: str, nproc: int) -> dict[str, Any]:
    """One training: rank 0's times and losses, and the most that any rank needs and sends."""
    fork = multiprocessing.get_context("fork")
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(nproc):
            reader, writer = fork.Pipe(duplex=False)
            work = (side, name, folder, rank, nproc, port, writer)
            process = fork.Process(target=enter, args=work)
            process.start()
            writer.close()
            ranks.append((process, reader))
        try:
            told = [receive(reader) for _, reader in ranks]
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
    most = {key: max(each[key] for each in told) for key in ("memory", "sent")}
    # A pipeline's loss is known where it ends, and then by all.
    return {**told[0], **most}


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


def enter(
    side: Side, name: str, folder: str, rank: int, nproc: int, port: int, writer: Connection
) -> None:
    """One rank, as torchrun would start it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
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
        side(name, folder, Watch(writer))
    except Exception:
        writer.send({"error": traceback.format_exc()})


def take_pair(name: str, nproc: int) -> dict[str, dict[str, Any]]:
    """A sample of each side."""
    sides: dict[str, Side] = {"ours": train_ours, "theirs": train_theirs}
    return {key: take_sample(side, name, nproc) for key, side in sides.items()}


def main(arguments: list[str]) -> None:
    """Answers each line of stdin with one pair, as a line of JSON."""
    name, nproc = arguments
    # Whatever a library prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for _ in sys.stdin:
        print(json.dumps(take_pair(name, int(nproc))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
