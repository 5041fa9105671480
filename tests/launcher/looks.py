"""What ``stacks`` and ``profile`` have to show on every target; and an agent's part of a look
without an agent, by a thread that answers in a node's folder.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

from launcher.contract.records import dump_record, parse_record, read_object
from launcher.contract.reports import look
from launcher.contract.reports.look import (
    Frame,
    Look,
    LookRequest,
    RankLook,
    RankStacks,
    ThreadStack,
)
from tests.launcher.runner import Runner
from tests.waiting import wait_until

STUCK_FOUR_WAYS = """
import ctypes, os, pathlib, signal, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def reads_in_c():  # goes on after a signal, which a sleep in C does not
    ctypes.CDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)

def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

print("ready", flush=True)
if rank == 0:
    dist.all_reduce(torch.ones(1000))
(waits_for_a_lock, reads_in_c, is_stopped)[rank - 1]()
"""
"""Rank 0 waits in a collective, 1 for a lock, 2 in C, and 3 is stopped."""


def check_four_ways(told: str) -> None:
    """What ``launcher stacks`` has to say of ``STUCK_FOUR_WAYS``."""
    for line in (
        "rank 0: all_reduce <- ",
        "rank 1: waits_for_a_lock <- ",
        "rank 2: reads_in_c <- ",
        "rank 3: stopped by a signal; kill -CONT continues it",
    ):
        assert line in told, told
    # Nobody can ask rank 3 what it has entered.
    assert "ranks 1-2 have not entered all_reduce 1 " in told, told


def count_steps(path: Path) -> int:
    """Optimizer steps in a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    return sum(event["name"].startswith("Optimizer.step#Adam") for event in events)


def check_profile(launcher: Runner, ranks: int) -> None:
    """``launcher profile`` of a training that has begun brings each rank's trace."""
    run = (launcher.folder / "runs/latest").resolve()
    wait_until(lambda: "ETA" in launcher("logs", run.name).stderr)
    check_traces(launcher, run.name, ranks)


def check_traces(launcher: Runner, run_id: str, ranks: int) -> None:
    """``launcher profile`` brings each rank's trace of three steps."""
    done = launcher.well("profile", run_id, "--steps", "3", "--seconds", "100")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"rank {rank}" for rank in range(ranks)]
    assert {count_steps(launcher.folder / line.split(": ")[1]) for line in lines} == {3}


def write_look(
    node_dir: Path, id: str, rank: int, *, why: look.Why = "asked", traced: bool = False
) -> None:
    """What an agent leaves of one worker that waits in ``recv``."""
    folder = look.look_dir(node_dir, id)
    folder.mkdir(parents=True)
    frames = (Frame(function="recv", file="/code/train.py", line=7),)
    thread = ThreadStack(name="MainThread", is_main=True, frames=frames)
    stacks = RankStacks(rank=rank, pid=1, taken_by="py-spy", threads=(thread,))
    (folder / look.STACKS.format(rank=rank)).write_text(dump_record(stacks))
    if traced:
        (folder / look.TRACE.format(rank=rank)).write_text('{"traceEvents": []}')
    seen = RankLook(rank=rank, pid=1, state="S", no_collectives="not here")
    told = Look(id=id, at=1.0, why=why, attempt=0, ranks=(seen,))
    (folder / look.LOOK_FILE).write_text(dump_record(told))


@contextlib.contextmanager
def answering(node_dir: Path, rank: int) -> Iterator[None]:
    """In the block a node's requests are answered."""
    node_dir.mkdir(parents=True, exist_ok=True)
    over, request = threading.Event(), node_dir / look.LOOK_REQUEST

    def answer() -> None:
        while not over.wait(0.02):
            if request.exists():
                asked = parse_record(LookRequest, read_object(request))
                request.unlink()
                write_look(node_dir, asked.id, rank, traced=asked.steps > 0)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)
