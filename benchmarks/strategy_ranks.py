"""``python -m benchmarks.strategy_ranks NAME NPROC``: a pair of one strategy's samples at a time.

Both sides train the language model in forked ranks: torch is imported once for all samples. Rank 0
times rounds of steps, and both sides take their rounds in turn, so that a machine that grows slower
slows down both. Each rank tells its memory, and the bytes that it sent.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

import train.loop
from benchmarks.forked_ranks import Training, answer, await_turn, forked
from benchmarks.peers import plain_strategies
from benchmarks.peers.plain_strategies import POWERSGD_AFTER
from fabric_train.worker_env import parse_worker_env
from train.config import parse_config

ROUND = 4
"""Steps of a round."""
ROUNDS = 5
"""Rounds that are timed; one more before them is not."""
BATCH = 8
OPTIONS = (
    *("--workload=charlm", "--model_size=small", f"--global_batch_size={BATCH}"),
    *("--accelerator=cpu", "--checkpoint_every_steps=1000000"),
)
OURS: dict[str, tuple[str, ...]] = {
    "powersgd": (f"--strategy_options.start_powerSGD_iter={POWERSGD_AFTER}",),
}
"""Options of our side that are not the defaults."""
_BYTES_SENT_AT, _TCP_INFO_LENGTH = 200, 208
"""Of ``tcpi_bytes_sent`` in Linux' ``struct tcp_info``; without the headers of packets."""


class Watch:
    """What one rank measures. ``after_step`` ends the process when it has seen enough."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._losses: list[float] = []
        self._rounds: list[float] = []
        self._began = self._sent = 0.0
        # A value of 5 makes the largest memory so far the present one: man proc, clear_refs.
        Path("/proc/self/clear_refs").write_text("5")
        self._memory = read_memory()["RssAnon"]

    def after_step(self, loss: torch.Tensor) -> None:
        """At the end of each step; at the end of a round the other side has its turn."""
        self._losses.append(loss.item())
        if len(self._losses) % ROUND:
            return
        if len(self._losses) == ROUND:
            self._sent = read_sent()
        else:
            self._rounds.append(time.monotonic() - self._began)
        if len(self._rounds) == ROUNDS:
            self._tell()
        self._pipe.send({})
        await_turn(self._pipe)
        self._began = time.monotonic()

    def _tell(self) -> NoReturn:
        sent = read_sent() - self._sent
        memory = read_memory()
        peak = memory["VmHWM"] - memory["RssFile"] - memory["RssShmem"] - self._memory
        self._pipe.send(
            {
                "step_s": statistics.median(self._rounds) / ROUND,
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


def start(side: Side, name: str, nproc: int) -> AbstractContextManager[Training]:
    """One side's training, which waits after its first round."""

    def enter(folder: str, pipe: Connection) -> None:
        side(name, folder, Watch(pipe))

    return forked(enter, nproc)


def take_rounds(trainings: Sequence[Training]) -> list[dict[str, Any]]:
    """Of each: rank 0's times and losses, and the most that any rank needs and sends."""
    told = [training.receive() for training in trainings]
    for _ in range(ROUNDS):
        for number, training in enumerate(trainings):
            training.go_on()
            told[number] = training.receive()
    # A pipeline's loss is known where it ends, and then by all.
    return [
        {**ranks[0], **{key: max(rank[key] for rank in ranks) for key in ("memory", "sent")}}
        for ranks in told
    ]


def take_pair(name: str, nproc: int, reverse: bool = False) -> dict[str, dict[str, Any]]:
    """A sample of each side; ``reverse`` lets theirs begin."""
    sides: list[tuple[str, Side]] = [("ours", train_ours), ("theirs", train_theirs)]
    if reverse:
        sides.reverse()
    with ExitStack() as stack:
        trainings = [stack.enter_context(start(side, name, nproc)) for _, side in sides]
        samples = take_rounds(trainings)
    return {key: sample for (key, _), sample in zip(sides, samples, strict=True)}


if __name__ == "__main__":
    name, nproc = sys.argv[1:]
    reverse = itertools.cycle((False, True))
    answer(lambda: take_pair(name, int(nproc), next(reverse)))
