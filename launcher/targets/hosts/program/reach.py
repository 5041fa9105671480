"""Which other hosts this one reaches, and whether they share a folder."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

from launcher.targets.hosts.program.messages import CallHosts, FindTokens

CALLS_AT_ONCE = 256
"""A quarter of the usual limit of open descriptors."""
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
        Thread(target=self._greet, daemon=True).start()

    def _greet(self) -> None:
        """Until the end of the process."""
        while True:
            with suppress(OSError):
                # Ended by the end of the conversation, which ends the process.
                peer, _ = self._socket.accept()
                with peer:
                    # Ended by the kernel's buffer, which has room for a token.
                    peer.sendall(self._token)


def call_hosts(asked: CallHosts) -> dict[str, str]:
    """Makes all calls; one that is silent for ``wait_s`` counts as not answered."""

    def call(address: str, port: int, token: str) -> str:
        with suppress(OSError), socket.create_connection((address, port), asked.wait_s) as peer:
            # Ended by the limit of the connection.
            if peer.recv(256) == token.encode():
                own: str = peer.getsockname()[0]
                return own
        return ""

    if not asked.calls:
        return {}
    with ThreadPoolExecutor(min(len(asked.calls), CALLS_AT_ONCE)) as pool:
        found = list(pool.map(lambda words: call(*words), asked.calls))
    return {str(place): own for place, own in enumerate(found) if own}


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
