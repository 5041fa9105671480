"""The port on which an agent's process answers as long as it lives, and no longer.

The kernel closes what a process had open as soon as the process has ended, however it ended. So
whoever holds a connection here learns of the end at once, and a port that refuses afterwards
proves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import socket
import threading
import uuid
from typing import Any

from launcher.agent.addresses import LOOPBACK

NAME_END = b"\n"
BACKLOG = 256

log = logging.getLogger(__name__)


def most_connections() -> int:
    """How many connections this process may hold; the rest of its descriptors is for others."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 64)


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Has the kernel check every minute whether the other end is there."""
    connection: Any = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Seconds, and a count: firewalls forget connections on which nothing is sent for minutes.
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if number := getattr(socket, option, None):
                connection.setsockopt(socket.IPPROTO_TCP, number, value)


@functools.cache
def loop_of_process() -> asyncio.AbstractEventLoop:
    """The loop in which this process keeps its lifelines: a thread of its own, until the end.

    The agent ends by ``os._exit``, which waits neither for it nor for names that it looks up.
    """
    loop = asyncio.new_event_loop()
    # Not on the node's console: tasks that the end of the process finds waiting are no error.
    loop.set_exception_handler(lambda _, context: log.debug("a lifeline: %s", context))
    threading.Thread(target=loop.run_forever, name="lifelines", daemon=True).start()
    return loop


# The thread is not there in a forked process.
os.register_at_fork(after_in_child=loop_of_process.cache_clear)


@functools.cache
def lifeline_of(addr: str) -> str:
    """This process' lifeline, as others reach it at ``addr``; empty where it has none.

    It is ``port/name``, and stays open until the process ends, over any number of handlers.
    """
    try:
        listener = LifelineListener(addr)
    except OSError:
        return ""
    return f"{listener.port}/{listener.name}"


def parse_lifeline(text: str) -> tuple[int, str]:
    """Port and name; raises ``ValueError`` where there is none."""
    port, _, name = text.partition("/")
    return int(port), name


class LifelineListener:
    """Accepts connections, sends this process' name to each, and ignores what they send."""

    def __init__(self, addr: str) -> None:
        self.name = uuid.uuid4().hex[:6]
        self._socket = _listen(addr)
        self.port = int(self._socket.getsockname()[1])
        self._open: set[Any] = set()
        """The sockets of those that have connected."""
        self._most = most_connections()
        # A forked process that outlives this one must not answer in its place.
        os.register_at_fork(after_in_child=self._close)
        served = asyncio.start_server(self._answer, sock=self._socket, backlog=BACKLOG)
        asyncio.run_coroutine_threadsafe(served, loop_of_process())

    def _close(self) -> None:
        lifeline_of.cache_clear()
        self._socket.close()
        null = os.open(os.devnull, os.O_RDWR)
        for one in self._open:
            if (fd := one.fileno()) >= 0:
                # Not closed: the socket closes its descriptor itself when it is freed.
                os.dup2(null, fd, inheritable=False)
        os.close(null)
        # When this process forks in turn, the descriptors may be those of its own files.
        self._open.clear()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        try:
            if len(self._open) < self._most:
                self._open.add(connection)
                keep_alive(writer)
                writer.write(self.name.encode() + NAME_END)
                await hear_end(reader)
        finally:
            self._open.discard(connection)
            writer.close()


async def hear_end(reader: asyncio.StreamReader) -> bool:
    """Waits until the connection ends; returns whether it was closed in an orderly way."""
    try:
        # Data is read and dropped: unread, it would turn the end into a reset.
        while await reader.read(4096):
            pass
    except OSError:
        return False
    return True


def _listen(addr: str) -> socket.socket:
    """Listens on the loopback if the others reach this node there, else on all addresses."""
    if addr in (LOOPBACK, "localhost"):
        return socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=BACKLOG)
