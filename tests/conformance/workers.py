"""What workers do here: tell who they are, then do what the scenario orders by files."""

import os
import signal
import time
from pathlib import Path


def tell() -> int:
    """Leaves this worker's environment in the node's folder; its rank."""
    # A forked worker has the agent's handler, which cannot run while the worker waits in C++.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder = Path(os.environ["TOLD"])
    hidden = folder / f".{os.getpid()}"
    hidden.write_text("".join(f"{name}={value}\n" for name, value in os.environ.items()))
    hidden.rename(folder / str(os.getpid()))
    return int(os.environ["RANK"])


def obey() -> str:
    """Waits for orders: see ``carry_out``."""
    rank = tell()
    while not carry_out(rank):
        time.sleep(0.02)
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
    if mine.read_text() == "return":
        return True
    code = int(mine.read_text().removeprefix("exit "))
    mine.unlink()
    os._exit(code)
