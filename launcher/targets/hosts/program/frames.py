"""Messages between launcher and host: a JSON object and bytes, each with its length in front."""

from __future__ import annotations

import json
from typing import IO, Any

MAGIC = b"\0launcher-host 1\n"
"""What the host says first: whatever a login shell prints before it is dropped."""
BEAT, ENOUGH = b".", b"!"
"""What the launcher says to a host that it watches, once it was told something: that it is still
there, and that it wants the conversation for other requests."""
MAX_JSON_BYTES = 64 << 20


class BrokenFrameError(Exception):
    """The other end spoke something else, or was cut off within a message."""


def write_frame(stream: IO[bytes], message: dict[str, Any], blob: bytes = b"") -> None:
    """Sends one message at once. Text that is no UTF-8 arrives as it was (``surrogateescape``)."""
    data = json.dumps(message).encode("ascii")
    stream.write(b"%d %d\n" % (len(data), len(blob)) + data + blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
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
    message = json.loads(data)
    if not isinstance(message, dict):
        raise BrokenFrameError("a message that is no object")
    return message, blob
