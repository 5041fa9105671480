"""Which other hosts this one reaches."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread

from launcher.targets.hosts.program.messages import CallHosts

CALLS_AT_ONCE = 256
"""A quarter of the usual limit of open descriptors."""


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
