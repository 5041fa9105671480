"""Which other hosts this one reaches, and with which it shares a folder."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from launcher.contract.waits import POLL_S
from launcher.targets.hosts.program.messages import CallHosts, FindTokens, LeaveToken, Listen

MOST_CALLS = 256
"""So many calls at once: a quarter of the usual limit of open descriptors."""


def listen(asked: Listen) -> int:
    """Opens a port until the process ends; callers learn which addresses lead here."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=512)

    def greet() -> None:
        while True:
            with suppress(OSError):
                # Ended by the end of the conversation, which ends the process.
                peer, _ = server.accept()
                with peer:
                    # Ended by the kernel's buffer, which has room for a token.
                    peer.sendall(asked.token.encode())

    Thread(target=greet, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


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
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(asked.calls), MOST_CALLS)) as pool:
        found = list(pool.map(lambda words: call(*words), asked.calls))
    return {str(place): own for place, own in enumerate(found) if own}


# -- files that hosts leave in a folder --------------------------------------------------------


def nearest_folder(path: str) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = Path(os.path.expanduser(path))
    return next(place for place in (folder, *folder.parents) if place.exists())


def leave_token(asked: LeaveToken) -> Path:
    """Makes a token. Raises ``OSError`` if nothing can be written there."""
    token = nearest_folder(asked.folder) / asked.name
    token.touch()
    return token


def find_tokens(asked: FindTokens) -> list[str]:
    """Looks for tokens until all are there, or the time is over."""
    folder = nearest_folder(asked.folder)
    deadline = time.monotonic() + asked.wait_s
    while True:
        # Makes NFS ask its server: what the client knows of the folder may be a minute old.
        path = folder / f".launcher-look-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            path.touch(exist_ok=False)
            path.unlink()
        found = [name for name in asked.names if (folder / name).exists()]
        if len(found) == len(asked.names) or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)
