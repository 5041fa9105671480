"""Which other hosts this one reaches, and whether they share a folder."""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from launcher.targets.hosts.program.messages import FindTokens

CALLS_AT_ONCE = 256
"""A quarter of the usual limit of open descriptors."""
SETTLED_S = 1.5
"""How long to wait for more addresses once each host has answered at one: a kernel sends a lost
first packet again after 1 s (RFC 6298)."""
LISTEN_S = 0.01
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
            # Ended by the kernel, at once: select has said that a caller waits.
            peer, _ = self._socket.accept()
            with peer:
                # Ended by the kernel, at once: the token is shorter than its buffer.
                peer.sendall(self._token)


def read_reachable(
    calls: Sequence[Sequence[Any]], limit_s: float, listeners: Sequence[Listener] = ()
) -> list[int]:
    """Which of (address, port, token) answer with their token, by place in the list.

    The same token and port at several addresses is one host: once each host has answered at each
    of its ports, only ``SETTLED_S`` more are waited. Callers of ``listeners`` are greeted
    meanwhile, as they may be the hosts that are called here. A call that is silent for its share
    of the limit goes to the end of the queue, so that each is made at least once within the limit,
    however many never answer.
    """
    deadline = time.monotonic() + limit_s
    share_s = limit_s / max(1, math.ceil(len(calls) / CALLS_AT_ONCE))
    queue, untried = deque(range(len(calls))), set(range(len(calls)))
    missing = {(token, port) for _, port, token in calls}
    reached: list[int] = []

    def make_calls() -> None:
        while queue and time.monotonic() < deadline:
            try:
                place = queue.popleft()
            except IndexError:  # another thread has taken the last one
                return
            address, port, token = calls[place]
            untried.discard(place)
            try:
                with socket.create_connection((address, port), share_s) as peer:
                    # Ended by share_s, the limit of the connection.
                    if peer.recv(256) == token.encode():
                        reached.append(place)
                        missing.discard((token, port))
            except socket.timeout:  # noqa: UP041 - no TimeoutError before Python 3.10
                queue.append(place)
            except OSError:
                continue

    threads: list[Thread] = []
    # Where the user may start no more threads, those that there are make all calls.
    with suppress(RuntimeError):
        for _ in calls[:CALLS_AT_ONCE]:
            threads.append(Thread(target=make_calls, daemon=True))
            threads[-1].start()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        for listener in select.select(listeners, [], [], LISTEN_S)[0]:
            listener.answer()
        if not missing and not untried:
            deadline = min(deadline, time.monotonic() + SETTLED_S)
    return sorted(reached)


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
