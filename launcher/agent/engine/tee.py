"""Copies what the workers write into their files to this process's own streams, in whole lines.

torch's own copy puts its prefix before each partial read, in the middle of an unfinished line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from launcher.agent.engine.attempts import WorkerPlace
from launcher.contract import protocol
from launcher.contract.waits import POLL_S

PROGRESS_S = 5.0
"""How often a progress bar, which never ends its line, is written as a line."""
CHUNK_BYTES = 1 << 20
MOST_BYTES = 16 << 20
"""A longer line is cut: a process that never ends its line must not fill the memory."""


class Tee:
    """A thread that follows the files of the present attempt until ``close``."""

    def __init__(self, node_index: int) -> None:
        self._prefix = protocol.LINE_PREFIX.format(node_index=node_index)
        self._files: list[_File] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)
        self._thread.start()

    def follow(self, workers: Sequence[WorkerPlace]) -> None:
        """Copies the rest of the attempt before, whose workers have ended; then these workers'."""
        with self._lock:
            self._copy(ended=True)
            self._files = [
                _File(worker.folder / name, self._prefix.replace("${rank}", str(worker.rank)), to)
                for worker in workers
                for name, to in _STREAMS
            ]

    def close(self) -> None:
        """Copies what is left, once the workers have ended."""
        self._closed.set()
        # Ended by the event, after one look at the files.
        self._thread.join()
        self._copy(ended=True)

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            with self._lock:
                self._copy(ended=False)

    def _copy(self, *, ended: bool) -> None:
        for file in self._files:
            # The agent's own output, or a worker's file, may be gone: neither ends the run.
            with contextlib.suppress(OSError, ValueError):
                file.copy(ended=ended)


_STREAMS: tuple[tuple[str, Literal["stdout", "stderr"]], ...] = (
    (protocol.STDOUT_FILE, "stdout"),
    (protocol.STDERR_FILE, "stderr"),
)


class _File:
    """One stream of one worker, read from its beginning."""

    def __init__(self, path: Path, prefix: str, to: Literal["stdout", "stderr"]) -> None:
        self._path, self._prefix, self._to = path, prefix.encode(), to
        self._file: BinaryIO | None = None
        self._rest = b""
        self._shown_at = time.monotonic()

    def copy(self, *, ended: bool) -> None:
        """Writes the lines that are finished; with ``ended`` also the last one, and closes."""
        if self._file is None:
            self._file = self._path.open("rb")
        while data := self._file.read(CHUNK_BYTES):
            self._rest += data
            self._write_lines()
        if ended:
            self._file.close()
            if self._rest:
                self._rest += b"\n"
                self._write_lines()
        elif self._to == "stderr" and time.monotonic() - self._shown_at >= PROGRESS_S:
            _, is_bar, update = self._rest.rpartition(b"\r")
            if is_bar and update:
                self._write(update + b"\n")
                self._rest = b"\r"

    def _write_lines(self) -> None:
        end = self._rest.rfind(b"\n") + 1
        if not end and len(self._rest) > MOST_BYTES:
            self._rest = self._rest[:MOST_BYTES] + b"\n" + self._rest[MOST_BYTES:]
            end = MOST_BYTES + 1
        if end:
            self._write(self._rest[:end])
            self._rest = self._rest[end:]

    def _write(self, lines: bytes) -> None:
        self._shown_at = time.monotonic()
        if self._to == "stderr" and b"\r" in lines:
            # Of a bar that was drawn over and over, the last state; stdout keeps every byte.
            shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines.split(b"\n"))
            lines = b"\n".join(shown)
        stream = getattr(sys, self._to).buffer
        stream.write(self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n")
        stream.flush()
