"""Functions that run in several forked processes, each a rank of one gloo group.

    def multiply(factor: int) -> int:
        return dist.get_rank() * factor

    assert run_forked(multiply, 2, 10) == [0, 10]

Torch is imported once, by the process that forks, so a rank costs 0.1 s instead of 2.5 s. The
function may be a closure; its result must be one that can be pickled.
"""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch

# The first step of an optimizer imports it: 2 s in every rank, if it is not there before the fork.
import torch._dynamo
import torch.distributed as dist

from fabric_train.worker_env import World

LIMIT_S = 60.0
GRACE_S = 2.0
"""What the other ranks get to end after one has failed; they may wait for it for ever."""
Outcome = tuple[str, Any]
"""``returned``, ``raised`` or ``died``, and the result, the traceback or the exit code."""


class ForkedError(AssertionError):
    """A rank failed, died or hung; ``failed`` are the ranks that did, in the order of time."""

    def __init__(self, text: str, failed: list[int]) -> None:
        super().__init__(text)
        self.failed = failed


def run_forked(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    limit_s: float = LIMIT_S,
    group: bool = True,
    environ: dict[str, str] | None = None,
    nodes: int = 1,
) -> list[Any]:
    """What ``function(*arguments)`` returns in each rank, in the order of ranks.

    Each rank has torchrun's variables, as if on so many ``nodes``, and ``environ``, one thread, and
    a gloo group over a file unless ``group`` is false. Raises ForkedError with the tracebacks of
    ranks that failed; a rank that has not ended after ``limit_s`` is killed, and the error says
    where it stood. None is left behind.
    """
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="forked-") as name:
        folder, port = Path(name), find_free_port()
        ranks: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(world_size):
                reader, writer = fork.Pipe(duplex=False)
                world = torchrun_variables(rank, world_size, port, nodes) | (environ or {})
                work = (function, arguments, world, group, folder, limit_s, writer)
                process = fork.Process(target=enter, args=work, name=f"rank {rank}")
                process.start()
                writer.close()
                ranks.append((process, reader))
            outcomes = collect(ranks, limit_s)
        finally:
            for process, reader in ranks:
                process.kill()
                process.join()
                reader.close()
        return judge(outcomes, world_size, folder, limit_s)


def torchrun_variables(rank: int, world_size: int, port: int, nodes: int) -> dict[str, str]:
    """The environment of one rank, with equally many on each node."""
    per_node = world_size // nodes
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "forked",
    }


def world_of(size: int, local: int = 0, rank: int = 0) -> World:
    """A world of so many workers, ``local`` of them on each node; 0: all on one."""
    local = local or size
    return World(
        rank=rank,
        local_rank=rank % local,
        world_size=size,
        local_world_size=local,
        master_addr="a",
        master_port=1,
    )


def find_free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to nobody meanwhile."""
    while True:
        port = random.SystemRandom().randint(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def enter(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    world: dict[str, str],
    group: bool,
    folder: Path,
    limit_s: float,
    writer: Connection,
) -> NoReturn:
    """One rank, from its fork to its end."""
    # Stores and groups that a test has left: to free one waits for its threads, which are not here.
    gc.freeze()
    os.environ |= world
    rank, world_size = int(world["RANK"]), int(world["WORLD_SIZE"])
    # Several threads would hang here: those of the process that forked do not exist in this one.
    torch.set_num_threads(1)
    random.seed(rank)
    torch.manual_seed(rank)
    # Kept open by the frame, which lasts as long as the process.
    stacks = (folder / f"stack-{rank}").open("w")
    faulthandler.dump_traceback_later(limit_s, file=stacks)
    try:
        if group:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'store'}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=limit_s),
            )
        result = function(*arguments)
        if group and dist.is_initialized():
            dist.barrier()
        # Not by the connection's own pickler, which hands tensors on as files of this process.
        answer = pickle.dumps(("returned", result))
    except BaseException:
        answer = pickle.dumps(("raised", traceback.format_exc()))
    writer.send_bytes(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without pytest's own exit handlers, and without freeing a group that others still use.
    os._exit(0)


def collect(ranks: list[tuple[BaseProcess, Connection]], limit_s: float) -> dict[int, Outcome]:
    """How each rank ended, in the order of their ends; without those that have not in time."""
    outcomes: dict[int, Outcome] = {}
    waiting = {reader: rank for rank, (_, reader) in enumerate(ranks)}
    deadline = time.monotonic() + limit_s + 1.0
    while waiting and (left := deadline - time.monotonic()) > 0:
        for ready in wait(list(waiting), left):
            assert isinstance(ready, Connection)
            rank = waiting.pop(ready)
            try:
                outcomes[rank] = pickle.loads(ready.recv_bytes())
            except EOFError:
                ranks[rank][0].join(GRACE_S)
                outcomes[rank] = ("died", f"exit code {ranks[rank][0].exitcode}")
            if outcomes[rank][0] != "returned":
                deadline = min(deadline, time.monotonic() + GRACE_S)
    return outcomes


def judge(outcomes: dict[int, Outcome], world_size: int, folder: Path, limit_s: float) -> list[Any]:
    """The results; raises ForkedError unless there are all."""
    told = [
        f"rank {rank} {how}: {what}" for rank, (how, what) in outcomes.items() if how != "returned"
    ]
    failed = [rank for rank, (how, _) in outcomes.items() if how != "returned"]
    for rank in set(range(world_size)) - set(outcomes):
        stack = folder / f"stack-{rank}"
        if stack.exists() and stack.stat().st_size:
            told.append(
                f"rank {rank} hung, and was killed after {limit_s:g} s:\n{stack.read_text()}"
            )
            failed.append(rank)
        else:
            told.append(f"rank {rank} was killed, as it waited for the others")
    if told:
        raise ForkedError("\n".join(told), failed)
    return [outcomes[rank][1] for rank in range(world_size)]
