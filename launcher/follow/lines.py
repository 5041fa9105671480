"""Cuts workers' output into whole lines and progress updates. Lines that are too long come in
pieces; bytes that are not UTF-8 are escaped.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024
"""A longer line is shown in pieces, so that a binary dump cannot fill the memory."""


@dataclass(frozen=True, kw_only=True)
class LineBlock:
    """Whole lines as UTF-8, each with its newline; or one progress update, without a newline.

    A block holds all lines of one read: handling each line by itself would cost too much.
    ``is_cut``: the last line goes on in the next block; the newline here stands where it was cut.
    """

    data: bytes
    is_progress: bool = False
    is_cut: bool = False

    def with_prefix(self, prefix: bytes) -> bytes:
        """The same lines, each behind ``prefix``."""
        if not prefix:
            return self.data
        return prefix + self.data[:-1].replace(b"\n", b"\n" + prefix) + self.data[-1:]


class BlockSplitter:
    """Collects bytes of one stream and returns complete lines and updates.

    Bytes that are not UTF-8 come out as ``\\xNN``. With ``keeps_returns`` a carriage return is a
    byte like any other, as if the stream were redirected to a file. With ``copies`` nothing is
    collected, cut or escaped.
    """

    def __init__(self, *, keeps_returns: bool = False, copies: bool = False) -> None:
        self._rest = b""
        self._keeps_returns, self._copies = keeps_returns, copies

    def feed(self, data: bytes) -> list[LineBlock]:
        """The lines and updates that ``data`` completes."""
        if self._copies:
            return [LineBlock(data=data)]
        buffer, held_back, blocks = self._rest + data, b"", list[LineBlock]()
        if b"\r" in buffer and not self._keeps_returns:
            buffer = buffer.replace(b"\r\n", b"\n")
            # Hold back a "\r" at the end: only the next byte shows if it belongs to "\r\n".
            if buffer.endswith(b"\r"):
                buffer, held_back = buffer[:-1], b"\r"
            *updates, buffer = buffer.split(b"\r")
            for update in updates:
                end = update.rfind(b"\n") + 1
                blocks += _lines(update[:end])
                blocks.append(LineBlock(data=_as_utf8(update[end:]), is_progress=True))
        end = buffer.rfind(b"\n") + 1
        blocks += _lines(buffer[:end])
        while len(buffer) - end > MAX_LINE_BYTES:
            cut = _end_of_character(buffer, end + MAX_LINE_BYTES)
            blocks.append(LineBlock(data=_as_utf8(buffer[end:cut]) + b"\n", is_cut=True))
            end = cut
        self._rest = buffer[end:] + held_back
        return blocks

    def flush(self) -> list[LineBlock]:
        """What is left of a stream that has ended."""
        rest, self._rest = self._rest, b""
        if rest.endswith(b"\r") and not self._keeps_returns:
            return [LineBlock(data=_as_utf8(rest[:-1]), is_progress=True)]
        return _lines(rest + b"\n") if rest else []


def _lines(data: bytes) -> list[LineBlock]:
    return [LineBlock(data=_as_utf8(data))] if data else []


def _end_of_character(data: bytes, end: int) -> int:
    """The last place up to ``end`` that does not lie within a character of UTF-8."""
    return next((at for at in range(end, end - 4, -1) if data[at] & 0xC0 != 0x80), end)


def _as_utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace").encode()
    return data
