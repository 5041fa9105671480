"""Work in a process of its own, which outlives the command that started it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

Tell = Callable[[str], None]
"""Sends one line to the process that waits; later calls are ignored."""


def in_background(work: Callable[[Tell], None], log: Path) -> str:
    """Runs ``work`` in a process that outlives this one and its terminal.

    Blocks until ``work`` sends its line, and returns the line; empty if ``work`` ended without one.
    The output of ``work`` goes to ``log``. Only for a process without threads.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as pipe:
            # Ended by the child's first line, or its end.
            return pipe.readline().rstrip("\n")
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    code, open_ends = 1, [writer]

    def tell(line: str) -> None:
        if open_ends:
            # The process that waited may have ended; the work goes on without it.
            with contextlib.suppress(BrokenPipeError), os.fdopen(open_ends.pop(), "w") as stream:
                stream.write(line + "\n")

    try:
        _redirect(log)
        work(tell)
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        # Even if a full disk makes both fail, this process must not return to its caller.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        # The run goes on without its log.
        output = nothing
    for source, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
