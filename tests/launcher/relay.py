"""A socket in the place of the Docker engine's, to play an engine that goes away and comes back."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest


@contextlib.contextmanager
def open_relay() -> Iterator[Relay]:
    """A relay for one test; skips it where the engine is on another machine."""
    if not (os.environ.get("DOCKER_HOST") or "unix://").startswith("unix://"):
        pytest.skip("the engine is not behind a socket of this machine")
    # Not in tmp_path: a socket's path has at most 107 bytes.
    relay = Relay(Path(f"/tmp/relay-{os.getpid()}.sock"))
    try:
        yield relay
    finally:
        relay.go()


class Relay:
    """A socket that leads to the engine's, and can be taken away from its clients."""

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, f"unix://{path}"
        self._engine = urlparse(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.come()

    def come(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def go(self) -> None:
        assert self._listener is not None
        self.path.unlink(missing_ok=True)
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._engine.path)
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
