"""``python agent.pyz attach FOLDER``: connects stdin and stdout to the debugger of a node.

FOLDER is ``nodes/<index>`` of the run's folder. Waits until a debugger is there, and ends with it,
or with whoever started this. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.waits import POLL_S

CONNECT_LIMIT_S = 10.0
"""How long a debugger that an editor uses may take to answer."""


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = _wait_for_debugger(Path(argv[0]))
    with contextlib.suppress(OSError):
        if connection is not None:
            _pass_on(connection)
    return 0


def _wait_for_debugger(folder: Path) -> socket.socket | None:
    """A connection to the node's debugger; None if this process' streams are closed before."""
    gone = select.poll()
    for fd in (0, 1):
        gone.register(fd, 0)
    while not gone.poll(0):
        with contextlib.suppress(OSError, ValueError):
            incarnations = (int(name) for name in os.listdir(folder) if name.isdigit())
            newest = folder / str(max(incarnations))
            return _connect((newest / protocol.DEBUGGER_FILE).read_text())
        # Ended by the debugger, or by whoever started this.
        time.sleep(POLL_S)
    return None


def _connect(address: str) -> socket.socket:
    if address.isdigit():
        return socket.create_connection((protocol.LOOPBACK, int(address)), CONNECT_LIMIT_S)
    connection = socket.socket(socket.AF_UNIX)
    # Ended by the kernel: somebody listens at the socket, or nobody does.
    connection.connect(address)
    return connection


def _pass_on(connection: socket.socket) -> None:
    connection.settimeout(None)
    readers: list[int] = [0, connection.fileno()]
    while True:
        # Ended by either side.
        ready, _, _ = select.select(readers, (), ())
        if connection.fileno() in ready:
            # Ended by what has come.
            if not (data := connection.recv(1 << 16)):
                return
            _write(data)
        if 0 in ready:
            # Ended by what has come.
            if data := os.read(0, 1 << 16):
                # Ended by the debugger, which reads it or ends.
                connection.sendall(data)
                continue
            readers.remove(0)
            connection.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
