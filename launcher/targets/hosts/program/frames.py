"""Messages between launcher and host: a record and bytes, each with its length in front."""

from __future__ import annotations

from typing import IO

from launcher.targets.hosts.program.records import Record, decode, encode

MAGIC = b"\0launcher-host 1\n"
"""The host's first words; what a login shell prints before them is skipped."""
BEAT, ENOUGH = b".", b"!"
"""Sent while the launcher watches a host: "still here", and "end the watch"."""
MAX_JSON_BYTES = 64 << 20


class BrokenFrameError(Exception):
    """What arrived is no message, or only a part of one."""


def write_frame(stream: IO[bytes], message: Record, blob: bytes = b"") -> None:
    """Sends one message."""
    data = encode(message)
    stream.write(b"%d %d\n" % (len(data), len(blob)) + data + blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[Record, bytes] | None:
    """The next message; None at the end of the stream. Raises ``BrokenFrameError``."""
    head = stream.readline(64)
    if not head:
        return None
    try:
        size, blob_size = map(int, head.split())
    except ValueError:
        raise BrokenFrameError(f"no message begins with {head!r}") from None
    if not 0 <= size <= MAX_JSON_BYTES or blob_size < 0:
        raise BrokenFrameError(f"a message of {size} bytes")
    data, blob = stream.read(size), stream.read(blob_size)
    if len(data) != size or len(blob) != blob_size:
        raise BrokenFrameError("cut off within a message")
    try:
        return decode(data), blob
    except ValueError as error:
        raise BrokenFrameError(str(error)) from None
