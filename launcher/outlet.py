"""Between a run and whoever reads what it says: a reader that pauses holds nothing up."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TextIO

BUFFER_BYTES = 16 << 20
"""What is kept for a reader that pauses; when it is full, the older half goes."""
HOLD_S = 1.0
"""A reader that takes half a buffer within this time is waited for, rather than left behind."""
STALL_S = 5.0
"""A reader that takes nothing for so long at a run's end is not waited for any more."""


class Outlet:
    """Writes to a stream's descriptor in a thread, whole lines in the order they were given.

    ``write`` never waits for a reader for more than ``HOLD_S``. What a reader missed beyond
    ``BUFFER_BYTES`` is replaced by one line with its number of lines and the command ``shows``,
    that shows them. Only for streams with a descriptor, and for a process that does not fork into
    the background afterwards.
    """

    def __init__(self, stream: TextIO, *, shows: str) -> None:
        self._fd, self._encoding, self._shows = stream.fileno(), stream.encoding, shows
        self.isatty = stream.isatty
        self._buffer, self._left_out = bytearray(), 0
        self._is_writing, self._keeps_up, self._writes = False, True, 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_on, daemon=True).start()

    def write(self, text: str) -> int:
        """Takes whole lines, or an update of a terminal's last line."""
        data = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if len(self._buffer) + len(data) > BUFFER_BYTES:
                self._make_room()
            self._buffer += data
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread writes at once what it is given."""

    def close(self) -> None:
        """Returns when all is written, or ``STALL_S`` after the last write that succeeded.

        In the second case the descriptor leads nowhere from then on, so that later words, an
        error's, do not wait either.
        """
        with self._changed:
            try:
                while self._is_writing or self._buffer:
                    writes = self._writes
                    self._changed.wait(STALL_S)
                    if self._writes == writes:
                        break
            finally:
                if self._is_writing or self._buffer:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._fd)

    def _make_room(self) -> None:
        half = BUFFER_BYTES // 2
        if self._keeps_up:
            self._keeps_up = self._changed.wait_for(lambda: len(self._buffer) <= half, HOLD_S)
        if not self._keeps_up:
            beyond = max(len(self._buffer) - half, 0)
            end = self._buffer.find(b"\n", beyond) + 1 or len(self._buffer)
            self._left_out += self._buffer.count(b"\n", 0, end)
            del self._buffer[:end]

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._buffer)
                chunk, self._is_writing = self._next_chunk(), True
            # A closed terminal or pipe must not end the run that is shown there.
            with contextlib.suppress(OSError):
                self._put(chunk)
            with self._changed:
                self._is_writing = False
                self._keeps_up = self._keeps_up or not self._buffer
                self._writes += 1
                self._changed.notify_all()

    def _next_chunk(self) -> bytes:
        """Whole lines, few enough for a pipe to take them in one piece, or one longer line."""
        end = self._buffer.rfind(b"\n", 0, select.PIPE_BUF) + 1 or self._buffer.find(b"\n") + 1
        chunk = bytes(self._buffer[: end or len(self._buffer)])
        del self._buffer[: len(chunk)]
        if not self._left_out:
            return chunk
        left_out, self._left_out = self._left_out, 0
        clear = "\r\x1b[K" if self.isatty() else ""
        told = (
            f"{clear}launcher: {left_out} lines left out here, as nobody read; see: {self._shows}\n"
        )
        return told.encode(self._encoding, "backslashreplace") + chunk

    def _put(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another process has made the terminal or pipe non-blocking
                select.select((), (self._fd,), ())
