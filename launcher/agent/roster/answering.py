"""The port on which an agent's process answers as long as it lives, and no longer.

The kernel closes what a process had open as soon as the process has ended, however it ended. So
whoever holds a connection here learns of the end at once, and a port that refuses afterwards
proves it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import selectors
import socket
import threading
import uuid

from launcher.agent.addresses import LOOPBACK
from launcher.contract.clock import SystemClock

NAME_END = b"\n"
BACKLOG = 256
PAUSE_S = 0.5
"""After a connection that could not be accepted, for want of descriptors."""
KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds and a count: firewalls forget connections on which nothing is sent for minutes."""


def most_connections() -> int:
    """How many connections this process may hold; the rest of its descriptors is for others."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 64)


def keep_alive(connection: socket.socket) -> None:
    """Lets the kernel look every minute whether the other end is there."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            if number := getattr(socket, option, None):
                connection.setsockopt(socket.IPPROTO_TCP, number, value)


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
    """Accepts connections, tells each of them this process' name, and hears nothing."""

    def __init__(self, addr: str) -> None:
        self.name = uuid.uuid4().hex[:6]
        self._socket = _listen(addr)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._most = most_connections()
        # A forked process that outlives this one must not answer in its place.
        os.register_at_fork(after_in_child=self._close)
        threading.Thread(target=self._answer, name="lifeline", daemon=True).start()

    def _close(self) -> None:
        lifeline_of.cache_clear()
        for one in (self._socket, *self._open):
            one.close()

    def _answer(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                # Ended by the next peer; this thread ends with its process.
                for key, _ in selector.select():
                    if key.fileobj is self._socket:
                        self._accept(selector)
                    elif isinstance(key.fileobj, socket.socket):
                        self._drop_if_closed(selector, key.fileobj)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            # Ended by the kernel, at once: the socket does not block.
            peer, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            SystemClock().sleep(PAUSE_S)
            return
        if len(self._open) >= self._most:
            peer.close()
            return
        self._open.add(peer)
        peer.setblocking(False)
        keep_alive(peer)
        with contextlib.suppress(OSError):
            peer.send(self.name.encode() + NAME_END)
        selector.register(peer, selectors.EVENT_READ)

    def _drop_if_closed(self, selector: selectors.BaseSelector, peer: socket.socket) -> None:
        try:
            # What somebody sends is thrown away: unread, it would turn the end into a reset.
            hear(peer)
        except (OSError, EOFError):
            selector.unregister(peer)
            self._open.discard(peer)
            peer.close()


def hear(connection: socket.socket) -> bytes:
    """What has come, empty where nothing has; never waits.

    Raises ``EOFError`` where the other end has closed in an orderly way, else ``OSError``.
    """
    try:
        # Ended by the kernel, at once: the socket does not block.
        heard = connection.recv(4096)
    except BlockingIOError:
        return b""
    if not heard:
        raise EOFError
    return heard


def _listen(addr: str) -> socket.socket:
    """On the loopback alone where the others reach this node there, else on all addresses."""
    if addr in (LOOPBACK, "localhost"):
        return socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=BACKLOG)
