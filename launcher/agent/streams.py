"""The agent's own output. A full disk, a closed pipe or a lost terminal drops lines of it and
never ends the agent. Standard library only.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO

_HOLD_S = 1.0
"""How long to wait for a full non-blocking pipe."""


def say(text: str, who: str = "agent") -> None:
    """Writes one line to the node's console."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"[{who}] {text}\n")
        sys.stderr.flush()


def open_streams() -> None:
    """Puts streams that never raise in the place of ``sys.stdout`` and ``sys.stderr``."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        setattr(sys, name, _open(old, fd))


def write_to_file(path: str) -> None:
    """Sends the output of this process, and of those that it starts, to a file from now on.

    Keeps the output where it is if the file cannot be opened.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for fd in (1, 2):
            os.dup2(file, fd)
        os.close(file)


def _open(old: TextIO | None, fd: int) -> TextIO:
    if not isinstance(old, io.TextIOWrapper):
        # It was closed when this process began; another file may have its number now.
        return open(os.devnull, "w")
    with contextlib.suppress(OSError):
        old.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Unrefused(fd)),  # type: ignore[type-var]
        encoding=old.encoding,
        errors=old.errors,
        # Even under ``python -u``: this stream has a buffer.
        line_buffering=True,
    )


class _Unrefused(io.RawIOBase):
    """A descriptor that accepts every write, and drops what it cannot pass on."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        left = memoryview(data).cast("B")
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                if not select.select((), (self._fd,), (), _HOLD_S)[1]:
                    break
            except OSError:
                break
        return len(data)
