"""The worker's side of ``run --debug``: what ``breakpoint()`` does in each rank.

pdb talks through a socket of the node, to which ``attach`` connects the person's terminal; an
editor talks to debugpy. Standard library only; debugpy is the node's own.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import os
import pdb
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol

PATIENCE_S = 5.0
"""After so long without a terminal the worker says that it waits for one."""
_NEVER = datetime.timedelta(days=30)
"""In place of no limit: about the longest that torch's clocks can hold."""


def open_debugger(kind: str) -> None:
    """Sets what ``breakpoint()`` does: ``pdb``, ``editor``, or ``none`` for the other ranks.

    Waits here for an editor, so that its own breakpoints count from the first line on. Raises
    ``SystemExit`` with what is missing.
    """
    if kind == "pdb":
        _set_hook(Debugger().stop)
    elif kind == "editor":
        _wait_for_editor()
    else:
        _set_hook(lambda *given, **named: None)


def _set_hook(hook: Callable[..., None]) -> None:
    # ``import pdb; pdb.set_trace()`` is the older spelling of ``breakpoint()``.
    sys.breakpointhook = pdb.set_trace = hook


def let_wait(groups: Any) -> None:
    """Makes process groups wait for a rank in a debugger, whatever limit the script gives them.

    ``groups`` is ``torch.distributed.distributed_c10d``.
    """
    begin, make = groups.init_process_group, groups._new_process_group_helper

    @functools.wraps(begin)
    def begin_patiently(*args: Any, **kwargs: Any) -> Any:
        # The limit also holds for the store, where ranks meet before they are a group.
        if len(args) > 2:
            return begin(*args[:2], _NEVER, *args[3:], **kwargs)
        return begin(*args, **{**kwargs, "timeout": _NEVER})

    def make_patient(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **{**kwargs, "timeout": _NEVER} if "timeout" in kwargs else kwargs)

    groups.init_process_group, groups._new_process_group_helper = begin_patiently, make_patient
    # If torch was imported before the fork, the package has the function under its name too.
    package = sys.modules["torch.distributed"]
    if hasattr(package, "init_process_group"):
        vars(package)["init_process_group"] = begin_patiently


def _file() -> Path:
    return Path(os.environ[protocol.NODE_DIR], protocol.DEBUGGER_FILE)


def _print_line(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"rank {os.environ['RANK']} {text}\n")


def _wait_for_editor() -> None:
    try:
        debugpy = importlib.import_module("debugpy")
    except ImportError:
        python = sys.executable
        raise SystemExit(
            f"error: --debug-port: {python} of node {os.environ[protocol.NODE_INDEX]} has no "
            f"debugpy\n  fix: {python} -m pip install debugpy, or leave out --debug-port for pdb"
        ) from None
    _, port = debugpy.listen((protocol.LOOPBACK, 0))
    write_atomically(_file(), str(port))
    _print_line("waits for the editor")
    # Ended by the person, who connects or stops the run.
    debugpy.wait_for_client()
    _set_hook(debugpy.breakpoint)


class Debugger:
    """pdb for a terminal that comes, goes, and comes again."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._terminal: _Terminal | None = None
        self._pdb: pdb.Pdb | None = None

    def stop(self, *, header: str | None = None) -> None:
        """Stops at the line of the caller; does nothing in a child of the script."""
        if os.getpid() != self._pid:
            _print_line(
                f"ignores a breakpoint in its child {os.getpid()}; with num_workers=0 it stops"
            )
            return
        try:
            self._terminal = terminal = self._terminal or _Terminal()
        except OSError as error:
            _print_line(f"ignores a breakpoint: no socket for the terminal: {error}")
            return
        if self._pdb is None:
            # The script keeps its own handler of SIGINT.
            self._pdb = pdb.Pdb(stdin=terminal, stdout=terminal, nosigint=True)  # type: ignore[arg-type]
            self._pdb.use_rawinput = False
        if header is not None:
            terminal.write(f"{header}\n")
        self._pdb.set_trace(sys._getframe(1))


class _Terminal:
    """Input and output of pdb: one connection, and the next one after it was cut."""

    encoding = "utf-8"

    def __init__(self) -> None:
        """Listens at a socket in a private folder of the node's user. Raises ``OSError``."""
        path = Path(os.environ[protocol.HEARTBEAT]).with_name(f"debugger-{os.getpid()}")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        write_atomically(_file(), str(path))
        self._connection: socket.socket | None = None
        self._buffer = b""
        self._unanswered = ""

    def write(self, text: str) -> None:
        """Shows a text, and shows it again to a later terminal if nobody answers."""
        self._unanswered += text
        if self._connection is not None:
            with contextlib.suppress(OSError):
                # Ended by the terminal, which reads it or goes.
                self._connection.sendall(text.encode())

    def flush(self) -> None:
        """Does nothing: ``write`` has no buffer."""

    def readline(self) -> str:
        """The next line that the person types. Ctrl-D leaves pdb, and the script goes on."""
        while b"\n" not in self._buffer:
            self._buffer += self._receive()
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._unanswered = ""
        # What stood as a prompt is answered.
        self.write(protocol.ANSWERED)
        text = line.decode(errors="replace")
        return "continue\n" if text == protocol.END_OF_INPUT else f"{text}\n"

    def _receive(self) -> bytes:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                # Ended by the person, or by the terminal's end.
                if data := self._connection.recv(4096):
                    return data
            self._connection.close()
        self._connection, self._buffer = self._accept(), b""
        with contextlib.suppress(OSError):
            # Ended by the terminal, as in ``write``.
            self._connection.sendall(self._unanswered.encode())
        return b""

    def _accept(self) -> socket.socket:
        self._listener.settimeout(PATIENCE_S)
        try:
            # Ended by PATIENCE_S.
            return self._listener.accept()[0]
        except TimeoutError:
            _print_line("has stopped at a breakpoint, and waits for its terminal")
        self._listener.settimeout(None)
        # Ended by the person, who connects or stops the run.
        return self._listener.accept()[0]
