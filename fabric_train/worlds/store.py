"""The store of one world, in which its ranks find each other."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from fabric_train.worker_env import World

STORE_LIMIT_S = 1800.0
"""How long a rank waits for rank 0 and for the others, who may still import."""
RETRY_S = 0.005
DIAL_LIMIT_S = 1.0
MEET_LIMIT_S = 3.0
"""How long torch's client tries: rank 0 may die after it was dialled, and then nobody answers."""


def open_store(world: World, is_over: Callable[[], bool]) -> TCPStore:
    """Rank 0's store, served by it, at the address that the environment names. Blocks.

    Raises ``DistNetworkError`` if nobody serves in time, or once ``is_over`` says so.
    """
    leads, end = world.rank == 0, time.monotonic() + STORE_LIMIT_S
    limit_s = STORE_LIMIT_S if leads else MEET_LIMIT_S
    while not is_over() and time.monotonic() < end:
        try:
            if not leads:
                # torch's client waits 0.3 s and longer after its first failure.
                where = (world.master_addr, world.master_port)
                socket.create_connection(where, DIAL_LIMIT_S).close()
            store = TCPStore(
                world.master_addr,
                world.master_port,
                world.world_size,
                leads,
                timeout=timedelta(seconds=limit_s),
                wait_for_workers=False,
            )
        except (OSError, dist.DistError):
            # Rank 0 has not begun, or has died since.
            if leads:
                raise
            time.sleep(RETRY_S)
        else:
            store.set_timeout(timedelta(seconds=STORE_LIMIT_S))
            return store
    raise dist.DistNetworkError(f"no store at {world.master_addr}:{world.master_port}")


def wait_for_all(store: TCPStore, world: World) -> None:
    """Until all ranks of the world are here. Raises a ``DistError`` if one is not in time."""
    store.set(f"here-{world.rank}", "")
    # Ended by the store's limit, or when its connection is shut down.
    store.wait([f"here-{rank}" for rank in range(world.world_size)])
