"""The way to a rank's debugger: from an editor's port, or from this terminal."""

import contextlib
import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.api import debugging
from launcher.api.debugging import Forwarder, Terminal, debugged, listen
from launcher.contract.errors import InputError, TargetError
from launcher.contract.protocol import END_OF_INPUT
from launcher.follow.console import Console
from launcher.follow.target import Door
from launcher.targets.local.target import LocalTarget
from launcher.targets.subprocesses.conversation import Conversation
from tests.waiting import wait_until


def refuse() -> Conversation:
    raise TargetError("the node has not started", "wait")


REFUSALS: dict[str, Callable[[], Conversation]] = {
    "the node has not started": refuse,
    "no route": lambda: Conversation(("sh", "-c", "echo a >&2; echo no route >&2; exit 1")),
    "[Errno 2] No such file": lambda: Conversation(("/gone/ssh",)),
}


def connect_after(refusals: int, how: str = "the node has not started") -> Callable[[], Any]:
    """Reaches a program that answers with what it gets, as the debugger of a node that is late."""
    left = iter(range(refusals))
    return lambda: REFUSALS[how]() if next(left, None) is not None else Conversation(("cat",))


def is_over() -> bool:
    """Whether nothing of a debugger is left: no thread, and none of its programs."""
    programs = [child for child in psutil.Process().children() if child.name() == "cat"]
    return not programs and "debugger" not in [one.name for one in threading.enumerate()]


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
    wait_until(is_over)


@pytest.mark.parametrize(
    ("how", "refusals", "notes"),
    [(how, 10, 1) for how in REFUSALS]
    + [(next(iter(REFUSALS)), number, number // 10) for number in (9, 12)],
)
def test_a_terminal_reaches_a_late_node_and_says_once_what_keeps_it(
    how, refusals, notes, monkeypatch
):
    monkeypatch.setattr(debugging, "AGAIN_S", 0.01)
    shown = io.StringIO()
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    terminal = Terminal(connect_after(refusals, how), Console(shown))
    try:
        terminal.start()
        typed = b"next\n"

        def is_answered() -> bool:
            os.write(writer, typed)
            return shown.getvalue().count("next\n") > 1

        wait_until(is_answered, shown.getvalue)
        os.close(writer)
        wait_until(lambda: END_OF_INPUT in shown.getvalue(), shown.getvalue)
    finally:
        terminal.close()
        wait_until(is_over)
        os.dup2(kept, 0)
        for one in (reader, kept):
            os.close(one)
    assert shown.getvalue().count(f"the debugger is not reached yet: {how}") == notes


@pytest.mark.parametrize("rank", [None, 2, 3])
@pytest.mark.parametrize("by_port", [True, False])
def test_the_debugger_of_a_rank_is_that_of_its_node(rank, by_port, make_run, on_local):
    run, plan = make_run(nnodes=3, nproc_per_node=2, agent={"debug_rank": rank})
    echo = Door(words=("echo",), at_terminal=(), python="python", archive="a.pyz")
    asked: list[int] = []
    on_local(door=lambda _, plan, index: asked.append(index) or echo)
    shown, port = io.StringIO(), listen(0) if by_port else None
    told = f"python a.pyz attach {Path(plan.nodes[1].log_dir).parent}\n"
    with debugged(run, plan, LocalTarget(run.path.parent), Console(shown), port):
        if rank is None:
            assert "debugger" not in [one.name for one in threading.enumerate()]
        elif port:
            with ask(port) as editor:
                assert editor.makefile().readline() == told
        else:
            wait_until(lambda: told in shown.getvalue())
    wait_until(is_over)
    assert set(asked) == (set() if rank is None else {1})
