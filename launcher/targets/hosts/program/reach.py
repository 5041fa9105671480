"""Which other hosts this one reaches, and with which it shares a folder."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from launcher.contract.waits import POLL_S
from launcher.targets.hosts.program.messages import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_CALLS = 256
"""So many calls at once: a quarter of the usual limit of open descriptors."""


def listen(*, token: str) -> int:
    """Opens a port that the kernel chooses, and that greets callers with ``token``.

    They learn which addresses lead here. It stays as long as the conversation.
    """
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
                    peer.sendall(token.encode())

    Thread(target=greet, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def call_hosts(*, calls: Sequence[Sequence[Any]], wait_s: float) -> dict[str, str]:
    """Makes the calls (address, port, token); a call counts if it gets its token back.

    Returns the address that such a call came from, by the call's place as text. One that is silent
    for ``wait_s`` counts as not answered.
    """

    def call(address: str, port: int, token: str) -> str:
        with suppress(OSError), socket.create_connection((address, port), wait_s) as peer:
            # Ended by the limit of the connection.
            if peer.recv(256) == token.encode():
                caller: str = peer.getsockname()[0]
                return caller
        return ""

    if not calls:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(calls), MOST_CALLS)) as pool:
        callers = list(pool.map(lambda words: call(*words), calls))
    return {str(place): caller for place, caller in enumerate(callers) if caller}


# -- files that hosts leave in a folder --------------------------------------------------------


def nearest_folder(path: str) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = Path(os.path.expanduser(path))
    return next(place for place in (folder, *folder.parents) if place.exists())


def find_tokens(*, folder: str, names: Sequence[str], wait_s: float) -> list[str]:
    """Which of these tokens are there; waits for all of them, ``wait_s`` at most."""
    place = nearest_folder(folder)
    deadline = time.monotonic() + wait_s
    while True:
        # Makes NFS ask its server: what the client knows of the folder may be a minute old.
        path = place / f".launcher-look-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            path.touch(exist_ok=False)
            path.unlink()
        left = [name for name in names if (place / name).exists()]
        if len(left) == len(names) or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)
