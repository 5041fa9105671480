"""Brings the debugger of one rank to this terminal, or to a port of this machine for an editor."""

from __future__ import annotations

import codecs
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from launcher.contract import protocol
from launcher.contract.errors import InputError, LauncherError
from launcher.follow.console import Console
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.subprocesses.conversation import Conversation

AGAIN_S = 1.0
"""Seconds between two tries to reach a node, which may still have to start."""
TOLD_AFTER = 10
"""Failures in a row after which a note says why."""
_CHUNK = 1 << 16


def listen(port: int) -> socket.socket:
    """A port of the loopback for an editor. Raises ``InputError`` if it is taken."""
    try:
        return socket.create_server((protocol.LOOPBACK, port), backlog=8)
    except OSError as error:
        what = f"--debug-port {port}: {error.strerror}"
        raise InputError(what, "another port") from error


@contextlib.contextmanager
def debugged(
    run: RunFolder, plan: LaunchPlan, target: Target, console: Console, port: socket.socket | None
) -> Iterator[None]:
    """Connects a run's debugger while the block follows the run; nothing for a run without one.

    An editor's connections to ``port`` reach debugpy; without a port pdb has standard input.
    """
    if plan.agent is None or plan.agent.debug_rank is None:
        yield
        return
    index = plan.agent.debug_rank // plan.nproc_per_node

    def connect() -> Conversation:
        now = run.read_plan()
        door = target.door(now, index)
        folder = str(PurePosixPath(now.nodes[index].log_dir).parent)
        return Conversation(door.command((door.python, door.archive, "attach", folder)))

    shows = Forwarder(connect, port) if port else Terminal(connect, console)
    shows.start()
    try:
        yield
    finally:
        shows.close()


class Terminal:
    """This process' standard input and the console as the terminal of pdb.

    Connects at the start, and again after each connection that ends.
    """

    def __init__(self, connect: Callable[[], Conversation], console: Console) -> None:
        self._connect, self._console = connect, console
        self._talk: Conversation | None = None
        self._over = threading.Event()
        self._failed = 0

    def start(self) -> None:
        """Does not block."""
        for work in (self._show, self._type):
            threading.Thread(target=work, name="debugger", daemon=True).start()

    def close(self) -> None:
        """Ends the connection."""
        self._over.set()
        if self._talk is not None:
            self._talk.kill()

    def _show(self) -> None:
        while not self._over.is_set():
            try:
                self._talk = talk = self._connect()
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                # Ended by the node, or by ``close``.
                while data := os.read(talk.stdout.fileno(), _CHUNK):
                    self._failed = 0
                    self._console.show_debugger(decoder.decode(data))
                code, errors = talk.end()
                self._note_trouble(errors.strip().rpartition("\n")[2] if code else "")
            except (LauncherError, OSError) as error:
                self._note_trouble(error.what if isinstance(error, LauncherError) else str(error))
            self._over.wait(AGAIN_S)

    def _note_trouble(self, trouble: str) -> None:
        """Tells once what keeps the node out of reach."""
        self._failed += 1 if trouble else 0
        if self._failed == TOLD_AFTER and not self._over.is_set():
            self._console.note(f"the debugger is not reached yet: {trouble}")

    def _type(self) -> None:
        while not self._over.is_set():
            try:
                # Ended by the person. Not sys.stdin, whose lock a thread would hold at the exit.
                typed = os.read(0, _CHUNK)
            except OSError:
                return
            if (talk := self._talk) is not None:
                with contextlib.suppress(OSError, ValueError):
                    talk.stdin.write(typed or f"{protocol.END_OF_INPUT}\n".encode())
                    talk.stdin.flush()
            if not typed:
                self._over.wait(AGAIN_S)


class Forwarder:
    """Passes an editor's connections on to debugpy in the node."""

    def __init__(self, connect: Callable[[], Conversation], port: socket.socket) -> None:
        self._connect, self._port = connect, port
        self._talks: list[Conversation] = []

    def start(self) -> None:
        """Does not block."""
        threading.Thread(target=self._serve, name="debugger", daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        # Wakes the thread, which ``close`` alone would not.
        with contextlib.suppress(OSError):
            self._port.shutdown(socket.SHUT_RDWR)
        self._port.close()
        for talk in self._talks:
            talk.kill()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                # Ended by ``close``.
                editor, _ = self._port.accept()
                with contextlib.suppress(LauncherError, OSError):
                    talk = self._connect()
                    self._talks.append(talk)
                    for work in (_send, _bring):
                        threading.Thread(target=work, args=(editor, talk), daemon=True).start()
                    continue
                # The node has not started: the editor tries again.
                editor.close()


def _send(editor: socket.socket, talk: Conversation) -> None:
    with contextlib.suppress(OSError, ValueError):
        # Ended by the editor, or by ``close``.
        while data := editor.recv(_CHUNK):
            talk.stdin.write(data)
            talk.stdin.flush()
        talk.stdin.close()


def _bring(editor: socket.socket, talk: Conversation) -> None:
    with contextlib.suppress(OSError, ValueError):
        # Ended by the node, or by ``close``.
        while data := os.read(talk.stdout.fileno(), _CHUNK):
            # Ended by the editor, which reads it or goes.
            editor.sendall(data)
    # Tells the editor and wakes ``_send``, which ``close`` alone would not.
    with contextlib.suppress(OSError):
        editor.shutdown(socket.SHUT_RDWR)
    editor.close()
    talk.end()
