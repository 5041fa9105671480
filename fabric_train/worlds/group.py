"""The process group of one world: the store in which its ranks find each other, how it is ended in
the middle of a collective, and which exceptions count as its failure.

torch's own ``abort`` wakes whoever waits in NCCL. In gloo it wakes nobody (torch 2.13), but a
connection that is shut down does, with the error of a peer that has gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d

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


SIGNS = ("gloo", "NCCL", "nccl", "Connection closed by peer", "Connection reset by peer")
"""What the message of a collective that failed contains; gloo raises a plain RuntimeError."""


def is_group_failure(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, is that of a process group or its store."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, dist.DistError):
            return True
        if isinstance(link, RuntimeError) and any(sign in str(link) for sign in SIGNS):
            return True
        link = link.__cause__ or link.__context__
    return False


@dataclass(frozen=True)
class Connection:
    """A TCP connection of this process; ``inode`` tells it from a later one with the same file."""

    file: int
    inode: str
    port: int
    peer: str
    peer_port: int


def list_connections() -> Iterator[Connection]:
    """The open TCP connections of this process."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inode = os.readlink(f"/proc/self/fd/{name}")
            if not inode.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and sock.type & socket.SOCK_STREAM:
                    peer, address_here = sock.getpeername(), sock.getsockname()
                    address = str(peer[0]).removeprefix("::ffff:")
                    yield Connection(int(name), inode, address_here[1], address, peer[1])


class Breaker:
    """Shuts down the connections of one process group when its work has to end.

    Make it before the group is formed: connections that are open then do not belong to the group.
    Nor do later ones to an address at which the group has no member.
    """

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._before = {connection.inode for connection in list_connections()}
        self._members: Set[str] | None = None
        self._closed_by_peer = select.poll()

    def formed(self) -> None:
        """Notes the members' addresses. Call it once the group is formed."""
        connections = [*self._own_connections()]
        self._members = {connection.peer for connection in connections}
        for connection in connections:
            if self._store_port not in (connection.port, connection.peer_port):
                self._closed_by_peer.register(connection.file, select.POLLRDHUP)

    def has_hung_up(self) -> bool:
        """Whether a member has closed its connection since the last call. Does not wait."""
        ended = self._closed_by_peer.poll(0)
        for file, _ in ended:
            self._closed_by_peer.unregister(file)
        return bool(ended)

    def shut(self) -> None:
        """Wakes whoever waits in the group, or in its store while it forms; from any thread."""
        with contextlib.suppress(RuntimeError):  # a group that ends meanwhile
            for group in [*distributed_c10d._world.pg_map]:
                if "nccl" in distributed_c10d._world.pg_map[group][0]:
                    group.abort()
        for connection in self._own_connections():
            is_stores = self._store_port in (connection.port, connection.peer_port)
            if self._members is None or (connection.peer in self._members and not is_stores):
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.file)) as sock,
                ):
                    sock.shutdown(socket.SHUT_RDWR)

    def _own_connections(self) -> Iterator[Connection]:
        return (
            connection for connection in list_connections() if connection.inode not in self._before
        )


def leave_groups() -> list[dist.ProcessGroup]:
    """Ends all groups without the others' help; returns them, to be freed later.

    DistributedDataParallel frees its group with the interpreter's lock held, which may hang if it
    holds the last reference. So keep them until the model is wrapped anew.
    """
    groups = [*distributed_c10d._world.pg_map]
    if groups:
        distributed_c10d._abort_process_group()
    return groups
