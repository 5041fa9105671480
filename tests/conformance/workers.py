"""What workers do here: tell who they are, then do what the scenario orders by files."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

SCRIPT = """
env > "$TOLD/.$$" && mv "$TOLD/.$$" "$TOLD/$$"
echo "out of $RANK"
echo "err of $RANK" >&2
exit "${1:-0}"
"""
"""A command as a worker: it tells, writes a line to each stream, and ends with the code given."""


def tell() -> int:
    """Leaves this worker's environment in the node's folder; its rank."""
    # A forked worker has the agent's handler, which cannot run while the worker waits in C++.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder = Path(os.environ["TOLD"])
    hidden = folder / f".{os.getpid()}"
    hidden.write_text("".join(f"{name}={value}\n" for name, value in os.environ.items()))
    hidden.rename(folder / str(os.getpid()))
    return int(os.environ["RANK"])


def echo(word: str) -> str:
    """A function whose value the agent has to hand back."""
    return f"{word} {tell()}"


def add_ranks() -> int:
    """The sum of all ranks, by a collective over gloo."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(tell())
    dist.init_process_group("gloo")
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total.item())


def call_the_other(word: str) -> str:
    """Rank 0 has rank 1 say the word, by torch's RPC."""
    from torch.distributed import rpc

    rank = tell()
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2)
    said = rpc.rpc_sync("rank-1", say, args=(word,)) if rank == 0 else ""
    rpc.shutdown()
    return said


def say(word: str) -> str:
    return f"{word} of rank {os.environ['RANK']}"


def obey() -> str:
    """Waits for orders: see ``carry_out``."""
    rank = tell()
    while not carry_out(rank):
        time.sleep(0.02)
    return f"rank {rank}"


def obey_together() -> str:
    """Waits for orders while it takes part in one collective after the other; tells after one."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    done = torch.zeros(1)
    dist.all_reduce(done)
    rank = tell()
    while not done:
        done = torch.tensor(float(carry_out(rank)))
        dist.all_reduce(done, op=dist.ReduceOp.MIN)
        time.sleep(0.02)
    dist.destroy_process_group()
    return f"rank {rank}"


def meet_late() -> str:
    """Rank 0 waits for the others in ``init_process_group``, to which nobody else comes."""
    import torch.distributed as dist

    rank = tell()
    if rank == 0:
        dist.init_process_group("gloo")
        dist.destroy_process_group()
    while not carry_out(rank):
        time.sleep(0.02)
    return f"rank {rank}"


def carry_out(rank: int) -> bool:
    """One look for an order; true for ``return``. An order to one rank is carried out once."""
    orders = Path(os.environ["ORDERS"])
    if (orders / "all").exists():
        return True
    mine = orders / str(rank)
    if not mine.exists():
        return False
    verb, _, what = mine.read_text().partition(" ")
    if verb == "return":
        return True
    mine.unlink()
    if verb == "raise":
        raise RuntimeError(what)
    if verb == "exit":
        sys.stdout.flush()
        os._exit(int(what))
    os.kill(os.getpid(), signal.Signals[what])
    return False


def fail_if_odd() -> str:
    """Odd ranks fail every time; even ones have nothing to do."""
    if (rank := tell()) % 2:
        raise RuntimeError(f"rank {rank} is odd")
    return f"rank {rank}"


def fail_if_odd_while_others_work() -> str:
    """Odd ranks fail every time; even ones work for longer than any test waits."""
    said = fail_if_odd()
    time.sleep(600)
    return said
