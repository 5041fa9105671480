"""Processes that answer on a lifeline, and a relay on the way to one that may cut it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import subprocess
import sys
import threading

from launcher.agent.roster.answering import parse_lifeline
from launcher.agent.roster.membership import Member

ADDR = "127.0.0.1"
ANSWERING = """
import os, signal, subprocess, sys
from launcher.agent.roster.answering import lifeline_of
told = lifeline_of("127.0.0.1")
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b".")
    signal.pause()
os.read(reader, 1)
started = subprocess.Popen(["sleep", "600"])
print(told, started.pid, flush=True)
signal.pause()
"""
"""Its children outlive it: one was forked after it began to answer, one was started."""


class Answering:
    """A process that answers, with two children."""

    def __init__(self, seat: str = "1.b-0") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ANSWERING],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        lifeline, child = self.process.stdout.readline().split()
        self.child = int(child)
        self.member = Member(seat=seat, addr=ADDR, port=1, lifeline=lifeline)

    def kill(self) -> None:
        """The process alone; its children live on."""
        self.process.kill()
        self.process.wait()


class Relay:
    """A middlebox: passes bytes on until it is told to cut what stands, or to refuse."""

    def __init__(self, lifeline: str) -> None:
        self.to, self._name = parse_lifeline(lifeline)
        self.accepted = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((ADDR, 0))
        self.port = int(self._listener.getsockname()[1])
        self.lifeline = f"{self.port}/{self._name}"
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def cut(self, *, reset: bool) -> None:
        """Ends both halves of what stands."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for sockets in pairs:
            for one in sockets:
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                one.close()

    def refuse(self) -> None:
        """Accepts nobody from now on."""
        with contextlib.suppress(OSError):
            # Else the thread that accepts would keep the port open.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def end(self) -> None:
        """Ends its threads too: a process that is forked beside them may find a lock held."""
        self.refuse()
        self._threads[0].join()
        self.cut(reset=False)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((ADDR, self.to))
                with self._lock:
                    self._pairs.append((near, far))
                self.accepted += 1
                passing = threading.Thread(target=_pass_on, args=(near, far), daemon=True)
                self._threads.append(passing)
                passing.start()


def _pass_on(near: socket.socket, far: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while near.fileno() >= 0:
            for key, _ in selector.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                heard = key.fileobj.recv(4096)
                if not heard:
                    for one in (near, far):
                        one.close()
                    return
                key.data.sendall(heard)
