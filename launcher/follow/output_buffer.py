"""Buffers a run's output, so that a reader who pauses does not hold up the run."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from typing import TextIO

FULL_BYTES = 4 << 20
"""Once this much waits for the reader, output that can be held back is held back."""
STALL_S = 5.0
"""At the end of a run, a reader that takes nothing for this long is given up."""


class OutputBuffer:
    """Writes whole lines to a stream's descriptor, in a thread.

    ``put`` never waits for a reader: a caller that can hold much output back asks ``has_room``
    first. ``on_lost`` is called once, in the thread, with the system's message when the stream
    fails (the reader has gone, the disk is full); later output is dropped. Not for a process that
    forks into the background afterwards.
    """

    def __init__(
        self, stream: TextIO, *, on_lost: Callable[[str], None] = lambda why: None
    ) -> None:
        self._fd, self.isatty = stream.fileno(), stream.isatty
        self._on_lost, self._is_lost = on_lost, False
        is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        # A pipe takes PIPE_BUF bytes in one piece.
        self._chunk_bytes = sys.maxsize if is_file else select.PIPE_BUF
        self._buffer = bytearray()
        self._is_writing, self._writes = False, 0
        self._gave_up_at: int | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._write_on, daemon=True).start()

    def put(self, data: bytes) -> None:
        """Takes whole lines, or an update of a terminal's last line."""
        with self._changed:
            if not self._is_lost:
                self._buffer += data
                self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether the reader keeps up, so that more can be written; False when it has gone."""
        with self._changed:
            return len(self._buffer) <= FULL_BYTES and not self._is_lost

    def wait_for_room(self) -> bool:
        """As ``has_room``; waits for a reader until it has read nothing for ``STALL_S``."""
        with self._changed:
            while not self.has_room() and not self._is_lost:
                writes = self._writes
                if self._gave_up_at != writes:
                    self._changed.wait(STALL_S)
                if self._writes == writes:
                    self._gave_up_at = writes
                    return False
            return not self._is_lost

    def close(self) -> bool:
        """Waits until all is written, or ``STALL_S`` after the last write. Returns whether all was.

        If not, the descriptor leads to /dev/null from then on, so that later messages do not wait.
        """
        with self._changed:
            try:
                while self._is_writing or self._buffer:
                    writes = self._writes
                    self._changed.wait(STALL_S)
                    if self._writes == writes:
                        break
            finally:
                is_done = not self._is_writing and not self._buffer
                if not is_done:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._fd)
            return is_done and self._gave_up_at is None

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._buffer)
                chunk, self._is_writing = self._next_chunk(), True
            # A closed terminal or pipe must not end the run.
            try:
                self._put(chunk)
            except OSError as error:
                with self._changed:
                    self._is_lost = True
                    self._buffer.clear()
                with contextlib.suppress(OSError):
                    self._on_lost(error.strerror or str(error))
            with self._changed:
                self._is_writing = False
                self._writes += 1
                self._changed.notify_all()

    def _next_chunk(self) -> bytes:
        """Whole lines, as many as may be written in one piece, or one longer line."""
        end = self._buffer.rfind(b"\n", 0, self._chunk_bytes) + 1 or self._buffer.find(b"\n") + 1
        chunk = bytes(self._buffer[: end or len(self._buffer)])
        del self._buffer[: len(chunk)]
        return chunk

    def _put(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another process has made the terminal or pipe non-blocking
                # Ended by whoever reads the terminal or pipe, or closes it.
                select.select((), (self._fd,), ())
