"""The way to a rank's debugger: from an editor's port, or from this terminal."""

import contextlib
import io
import os
import socket
from collections.abc import Callable

import pytest

from launcher.api import debugging
from launcher.api.debugging import Forwarder, Terminal, listen
from launcher.contract.errors import InputError, TargetError
from launcher.follow.console import Console
from launcher.targets.conversation import Conversation
from tests.waiting import wait_until


def connect_after(refusals: int) -> Callable[[], Conversation]:
    """Reaches a program that answers with what it gets, as the debugger of a node that is late."""
    left = iter(range(refusals))

    def connect() -> Conversation:
        if next(left, None) is not None:
            raise TargetError("the node has not started", "wait")
        return Conversation(("cat",))

    return connect


def ask(port: socket.socket) -> socket.socket:
    editor = socket.create_connection(port.getsockname(), timeout=10)
    with contextlib.suppress(OSError):
        editor.sendall(b"hello")
    return editor


def test_an_editor_that_comes_too_early_is_let_go_and_then_reaches_the_node_until_the_end():
    port = listen(0)
    with pytest.raises(InputError, match=r"--debug-port .*: Address already in use"):
        listen(port.getsockname()[1])
    forwarder = Forwarder(connect_after(1), port)
    forwarder.start()
    with ask(port) as early, contextlib.suppress(ConnectionResetError):
        assert early.recv(5) == b""
    with ask(port) as editor, ask(port) as other:
        for one in (editor, other):
            assert one.recv(5) == b"hello"
        editor.shutdown(socket.SHUT_WR)
        assert editor.recv(5) == b""
        forwarder.close()
        assert other.recv(5) == b""


@pytest.mark.parametrize(("refusals", "notes"), [(9, 0), (10, 1), (12, 1)])
def test_a_terminal_reaches_a_late_node_and_says_once_what_keeps_it(refusals, notes, monkeypatch):
    monkeypatch.setattr(debugging, "AGAIN_S", 0.01)
    shown = io.StringIO()
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    terminal = Terminal(connect_after(refusals), Console(shown))
    try:
        terminal.start()
        typed = b"next\n"

        def is_answered() -> bool:
            os.write(writer, typed)
            return shown.getvalue().count("next\n") > 1

        wait_until(is_answered, shown.getvalue)
    finally:
        terminal.close()
        os.close(writer)
        os.dup2(kept, 0)
        for one in (reader, kept):
            os.close(one)
    told = shown.getvalue().count("the debugger is not reached yet: the node has not started")
    assert told == notes
