"""Which other hosts this one reaches, and whether they share a folder."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.targets.hosts.program.messages import FindTokens

CALLS_AT_ONCE = 256
"""A quarter of the usual limit of open descriptors."""
SETTLED_S = 1.5
"""How long to wait for more addresses once each host has answered at one: a kernel sends a lost
first packet again after 1 s (RFC 6298)."""
LOOK_S = 0.1


class Listener:
    """An open port that greets callers with a token: they learn which addresses lead here."""

    def __init__(self, token: str, port: int = 0) -> None:
        """Raises ``OSError`` where ``port`` is taken."""
        self._token = token.encode()
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(
            ("", port), family=family, dualstack_ipv6=dual, backlog=512
        )
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> None:
        """Greets the caller that waits."""
        with suppress(OSError):
            peer, _ = self._socket.accept()
            with peer:
                peer.sendall(self._token)


def read_reachable(
    calls: Sequence[Sequence[Any]], limit_s: float, listeners: Sequence[Listener] = ()
) -> list[int]:
    """Which of (address, port, token) answer with their token, by place in the list.

    The same token and port at several addresses is one host: once each host has answered at each
    of its ports, only ``SETTLED_S`` more are waited. Callers of ``listeners`` are greeted
    meanwhile, as they may be the hosts that are called here.
    """
    deadline = time.monotonic() + limit_s
    under_way = Calls(calls, limit_s, listeners)
    try:
        while under_way.go_on() and time.monotonic() < deadline:
            under_way.wait(deadline)
            if under_way.settled:
                deadline = min(deadline, time.monotonic() + SETTLED_S)
    finally:
        under_way.close()
    return sorted(under_way.reached)


class Calls:
    """Calls at many addresses, at most ``CALLS_AT_ONCE`` open at a time.

    A call that is silent for its share of the limit goes to the end of the queue, so that each is
    made at least once within the limit, however many never answer.
    """

    def __init__(
        self, calls: Sequence[Sequence[Any]], limit_s: float, listeners: Sequence[Listener]
    ) -> None:
        self._calls = calls
        self._share_s = limit_s / max(1, math.ceil(len(calls) / CALLS_AT_ONCE))
        self._queue = deque(range(len(calls)))
        self._untried = len(calls)
        self._missing = {(token, port) for _, port, token in calls}
        self._open: dict[int, tuple[socket.socket, int, float]] = {}
        # select takes no descriptor above 1023.
        self._poll = select.poll()
        self._listeners = {listener.fileno(): listener for listener in listeners}
        for number in self._listeners:
            self._poll.register(number, select.POLLIN)
        self.reached: list[int] = []

    @property
    def settled(self) -> bool:
        """Whether all hosts answered at all ports, and all addresses were tried."""
        return not self._missing and not self._untried

    def go_on(self) -> bool:
        """Makes calls while there is room; False when none is open."""
        while self._queue and len(self._open) < CALLS_AT_ONCE:
            self._untried = max(0, self._untried - 1)
            self._dial(self._queue.popleft())
        return bool(self._open)

    def wait(self, deadline: float) -> None:
        """Waits until an answer comes, or a call has had its share of the time."""
        _, _, oldest_at = next(iter(self._open.values()))
        until = min(deadline, oldest_at + self._share_s) if self._queue else deadline
        left_s = max(0.0, until - time.monotonic())
        for number, _ in self._poll.poll(math.ceil(left_s * 1000)):
            if number in self._listeners:
                self._listeners[number].answer()
            else:
                self._hear(number)
        late_at = time.monotonic() - self._share_s
        late = [n for n, (_, _, begun_at) in self._open.items() if begun_at <= late_at]
        for number in late[: len(self._queue)]:
            self._queue.append(self._hang_up(number))

    def close(self) -> None:
        for number in list(self._open):
            self._hang_up(number)

    def _dial(self, place: int) -> None:
        address, port, _ = self._calls[place]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            peer = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # a host without IPv6
                return
            raise
        peer.setblocking(False)
        if peer.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
            peer.close()
            return
        self._open[peer.fileno()] = (peer, place, time.monotonic())
        self._poll.register(peer, select.POLLIN)

    def _hear(self, number: int) -> None:
        peer, place, _ = self._open[number]
        _, port, token = self._calls[place]
        with suppress(OSError):
            if peer.recv(256) == token.encode():
                self.reached.append(place)
                self._missing.discard((token, port))
        self._hang_up(number)

    def _hang_up(self, number: int) -> int:
        peer, place, _ = self._open.pop(number)
        self._poll.unregister(number)
        peer.close()
        return place


class Token:
    """A file in a folder that other hosts may share; removed with the conversation."""

    def __init__(self, folder: str, name: str) -> None:
        """Raises ``OSError`` where nothing can be written there."""
        self.path = Path(os.path.expanduser(folder), name)
        missing = [path for path in self.path.parents if not path.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.made = missing
        self.path.touch()

    def remove(self, *, folders: bool = False) -> None:
        """Removes the file, and empty ``folders`` that were made for it. Idempotent."""
        with suppress(OSError):
            self.path.unlink()
        for folder in self.made if folders else ():
            with suppress(OSError):
                folder.rmdir()


def find_tokens(asked: FindTokens) -> list[str]:
    """Looks for tokens until all are there, or the time is over."""
    folder = os.path.expanduser(asked.folder)
    deadline = time.monotonic() + asked.wait_s
    while True:
        _touch(folder)
        seen = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        found = [name for name in asked.names if name in seen]
        if len(found) == len(asked.names) or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)


def _touch(folder: str) -> None:
    """Makes NFS ask its server: its list of the folder's files may be a minute old."""
    path = os.path.join(folder, f".launcher-look-{os.getpid()}-{time.monotonic_ns()}")
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.unlink(path)
