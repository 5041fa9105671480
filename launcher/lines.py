"""Cuts a byte stream into whole lines and progress updates, whatever bytes it holds."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024
"""A longer line is shown in pieces, so that a binary dump cannot fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line without its end; ``is_progress`` where it ended in a bare carriage return."""

    text: str
    is_progress: bool = False


class LineSplitter:
    """Collects bytes of one stream and gives back what is complete.

    Bytes that are not UTF-8 come out as ``\\xNN``. A carriage return at the very end is kept
    until the next byte tells whether it was ``\\r\\n``.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Line]:
        """The lines that ``data`` completes."""
        buffer, start = self._rest + data, 0
        lines = []
        # By position: to cut each line off would copy all that follows it, for every line.
        while (end := _end_of_line(buffer, start)) is not None:
            stop, skip, is_progress = end
            lines.append(_line(buffer[start:stop], is_progress))
            start = stop + skip
        while len(buffer) - start > MAX_LINE_BYTES:
            lines.append(_line(buffer[start : start + MAX_LINE_BYTES], False))
            start += MAX_LINE_BYTES
        self._rest = buffer[start:]
        return lines

    def flush(self) -> list[Line]:
        """What is left of a stream that has ended."""
        rest, self._rest = self._rest, b""
        return [_line(rest.removesuffix(b"\r"), rest.endswith(b"\r"))] if rest else []


def _end_of_line(buffer: bytes, start: int) -> tuple[int, int, bool] | None:
    """Where the line at ``start`` stops, how long its end is, and if it is a progress update."""
    newline = buffer.find(b"\n", start)
    until = newline if newline >= 0 else len(buffer)
    carriage = buffer.find(b"\r", start, until)
    if carriage < 0:
        return (newline, 1, False) if newline >= 0 else None
    following = buffer[carriage + 1 : carriage + 2]
    if not following:
        return None
    return (carriage, 2, False) if following == b"\n" else (carriage, 1, True)


def _line(raw: bytes, is_progress: bool) -> Line:
    return Line(text=raw.decode("utf-8", errors="backslashreplace"), is_progress=is_progress)
