"""Cuts a byte stream into whole lines and progress updates, whatever bytes it holds."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024
"""A longer line is shown in pieces, so that a binary dump cannot fill the memory."""


@dataclass(frozen=True, kw_only=True)
class LineBlock:
    """Whole lines as UTF-8, each with its end; or one progress update, which has none.

    As many lines as one read brought: work for each of them would cost more than the output.
    """

    data: bytes
    is_progress: bool = False

    def with_prefix(self, prefix: bytes) -> bytes:
        """The same lines, each behind ``prefix``."""
        if not prefix:
            return self.data
        return prefix + self.data[:-1].replace(b"\n", b"\n" + prefix) + self.data[-1:]


class BlockSplitter:
    """Collects bytes of one stream and gives back what is complete.

    Bytes that are not UTF-8 come out as ``\\xNN``. A carriage return at the very end is kept
    until the next byte tells whether it was ``\\r\\n``. With ``keeps_returns`` a carriage return
    is a byte like any other, as in a file that the stream was redirected to.
    """

    def __init__(self, *, keeps_returns: bool = False) -> None:
        self._rest = b""
        self._keeps_returns = keeps_returns

    def feed(self, data: bytes) -> list[LineBlock]:
        """What ``data`` completes."""
        buffer = self._rest + data
        if self._keeps_returns or b"\r" not in buffer:
            end = buffer.rfind(b"\n") + 1
            blocks = [LineBlock(data=_as_utf8(buffer[:end]))] if end else []
        else:
            blocks, end = _cut_at_returns(buffer)
        while len(buffer) - end > MAX_LINE_BYTES:
            piece = buffer[end : end + MAX_LINE_BYTES]
            blocks.append(LineBlock(data=_as_utf8(piece) + b"\n"))
            end += MAX_LINE_BYTES
        self._rest = buffer[end:]
        return blocks

    def flush(self) -> list[LineBlock]:
        """What is left of a stream that has ended."""
        rest, self._rest = self._rest, b""
        if not rest:
            return []
        if rest.endswith(b"\r") and not self._keeps_returns:
            return [LineBlock(data=_as_utf8(rest[:-1]), is_progress=True)]
        return [LineBlock(data=_as_utf8(rest) + b"\n")]


def _cut_at_returns(buffer: bytes) -> tuple[list[LineBlock], int]:
    """Blocks of whole lines with the progress updates between them, and where the rest begins."""
    blocks: list[LineBlock] = []
    lines: list[bytes] = []
    start = 0
    # By position: to cut each line off would copy all that follows it, for every line.
    while (found := _end_of_line(buffer, start)) is not None:
        stop, skip, is_progress = found
        text = buffer[start:stop]
        start = stop + skip
        if not is_progress:
            lines.append(text + b"\n")
            continue
        blocks += _joined(lines)
        lines = []
        blocks.append(LineBlock(data=_as_utf8(text), is_progress=True))
    return blocks + _joined(lines), start


def _joined(lines: list[bytes]) -> list[LineBlock]:
    return [LineBlock(data=_as_utf8(b"".join(lines)))] if lines else []


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


def _as_utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace").encode()
    return data
