"""How the lines of a run look: prefixes and their colours, the launcher's own notes, the progress
bar, a debugger's prompt. Which lines have a prefix is decided in ``loop``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TextIO

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.follow.lines import LineBlock
from launcher.follow.output_buffer import OutputBuffer
from launcher.follow.tails import Stream

PROGRESS_INTERVAL_S = 5.0
"""How often a progress update becomes a plain line where no terminal is attached."""

WORKER_COLOURS = (36, 33, 35, 32, 34, 31)
DEBUGGER, PROMPTS = "debugger", ("(Pdb) ", "(com) ")


class Console:
    """Writes whole lines to two streams; on a terminal the last line may be a progress bar.

    ``stream`` takes the launcher's notes, the progress bar and the workers' stderr; ``out`` takes
    their stdout, by default ``stream`` too. Prefixes have a colour on a terminal, unless NO_COLOR
    is set. A stream that cannot be written any more never ends the run. ``shows`` is the command
    that shows the output. ``is_ending`` is set once the run is being ended.
    """

    def __init__(
        self,
        stream: TextIO | OutputBuffer,
        *,
        out: TextIO | OutputBuffer | None = None,
        clock: Clock | None = None,
        shows: str = "",
    ) -> None:
        self._stream, self._out = stream, stream if out is None else out
        self._terminal = stream.isatty()
        self._colour = "NO_COLOR" not in os.environ
        self._clock = clock or SystemClock()
        self.is_ending = False
        self._shows = shows
        self._progress, self._progress_of = "", "stderr"
        self._debugger_text = ""
        self._last_progress_at = float("-inf")

    @property
    def keeps_returns(self) -> bool:
        """Whether the workers' carriage returns on stdout stay, as it goes to no terminal."""
        return not self._out.isatty()

    @property
    def copies_stdout(self) -> bool:
        """Whether the workers' stdout has a stream of its own, which takes any bytes."""
        is_own = self._out is not self._stream and self.keeps_returns
        return is_own and isinstance(self._out, OutputBuffer)

    def line(self, text: str) -> None:
        """Writes one line unchanged."""
        self._write(f"{text}\n".encode(errors="backslashreplace"))

    def note(self, text: str) -> None:
        """Writes a line of the launcher itself."""
        self.line(f"{self._painted(self._stream, 'launcher:', -1)} {text}")

    def show(
        self, block: LineBlock, *, stream: Stream, prefix: str = "", colour_key: int = 0
    ) -> None:
        """Writes whole lines of ``stream``, each after the coloured ``prefix`` if there is one.

        A line that was cut is put together again where there is no prefix: one worker writes alone.
        """
        sink = self._sink(stream)
        painted = f"{self._painted(sink, prefix, colour_key)} " if prefix else ""
        data = block.with_prefix(painted.encode())
        data = data[:-1] if block.is_cut and not prefix else data
        if sink is self._stream:
            self._write(data)
        else:
            self._put(sink, data)

    def progress(self, text: str, *, stream: Stream = "stderr", prefix: str = "") -> None:
        """Updates the live line; without a terminal, writes a line with ``prefix`` now and then."""
        sink = self._sink(stream)
        if self._terminal and sink is self._stream:
            self._progress, self._progress_of = text, stream
            self._write(b"")
        elif self._clock.monotonic() - self._last_progress_at >= PROGRESS_INTERVAL_S:
            self._last_progress_at = self._clock.monotonic()
            text = f"{prefix} {text.strip()}".lstrip()
            self._put(sink, f"{text}\n".encode())

    def show_debugger(self, text: str) -> None:
        """Shows a debugger's output; its prompt stays below all other lines until the answer."""
        before, answered, after = text.rpartition(protocol.ANSWERED)
        if answered:
            self._progress = "" if self._progress_of == DEBUGGER else self._progress
            self._debugger_text += before.replace(protocol.ANSWERED, "")
        *lines, rest = (self._debugger_text + after).split("\n")
        is_prompt = rest.endswith(PROMPTS)
        self._debugger_text = "" if is_prompt else rest
        if is_prompt:
            self._progress, self._progress_of = rest, DEBUGGER
        self._write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))

    def close(self) -> None:
        """Leaves the last progress on the screen, and the cursor below it."""
        if self._progress:
            self._progress = ""
            self._put(self._stream, b"\n")

    def end_progress(self, stream: Stream = "stderr") -> None:
        """Drops the live line of a stream: what the line counted has ended."""
        if self._progress_of == stream:
            self._progress = ""

    def has_room(self, stream: Stream) -> bool:
        """Whether more of a stream can be taken without losing any of it."""
        sink = self._sink(stream)
        return not isinstance(sink, OutputBuffer) or sink.has_room()

    def wait_for_room(self, stream: Stream) -> bool:
        """As ``has_room``, but waits for a slow reader."""
        sink = self._sink(stream)
        return not isinstance(sink, OutputBuffer) or sink.wait_for_room()

    def _sink(self, stream: Stream) -> TextIO | OutputBuffer:
        return self._out if stream == "stdout" else self._stream

    def _write(self, data: bytes) -> None:
        if self._terminal:
            # Clear the live line, write, draw it again, so that lines do not mix.
            width = shutil.get_terminal_size().columns
            data = b"\r\x1b[K" + data + self._progress[: width - 1].encode()
        self._put(self._stream, data)

    def _painted(self, sink: TextIO | OutputBuffer, prefix: str, colour_key: int) -> str:
        return paint_prefix(prefix, colour_key) if self._colour and sink.isatty() else prefix

    def _put(self, sink: TextIO | OutputBuffer, data: bytes) -> None:
        if isinstance(sink, OutputBuffer):
            sink.put(data)
        else:
            # A closed terminal or pipe must not end the run.
            with contextlib.suppress(OSError):
                sink.write(data.decode())
                sink.flush()

    def note_lost_stdout(self, why: str) -> None:
        """Notes that the workers' stdout is not written any more."""
        goes_on = "" if self.is_ending else "; the run goes on"
        shows = f"; its output: {self._shows}" if self._shows else ""
        self.note(f"stdout cannot be written any more ({why}){goes_on}{shows}")


def prefix_of(node_index: int, rank: int | None) -> str:
    """``[node/rank]``; the node's agent has no rank."""
    return f"[{node_index}/{'agent' if rank is None else rank}]"


def paint_prefix(prefix: str, colour_key: int) -> str:
    """The prefix in the colour of a rank or a node; bold for the launcher, whose key is -1."""
    code = 1 if colour_key < 0 else WORKER_COLOURS[colour_key % len(WORKER_COLOURS)]
    return f"\x1b[{code}m{prefix}\x1b[0m"
