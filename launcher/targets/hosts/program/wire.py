"""Records with typed fields: the messages between launcher and host, and files on hosts.

A message on the wire is a record and bytes, with both lengths in front. Records are no dataclasses,
and nothing here imports ``typing`` on a host: each conversation starts a Python, for which
dataclasses would cost 30 to 50 ms of processor time, and ``typing`` 12 ms (docs/decisions/0030).
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


MAGIC = b"\0launcher-host 1\n"
"""The host's first words; what a login shell prints before them is skipped."""
BEAT = b"."
"""Sent by a launcher that watches a host, to say that it is still there."""
MOST_BYTES = 64 << 20
"""The most of a message, without the bytes that come with it."""
_KINDS: dict[str, type[Record]] = {}
_KIND = "@record"
"""The key that names the kind of a record in JSON."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """The annotations of the class are its fields, and their values the defaults."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.__name__] = cls

    def __init__(self, **given: Any) -> None:
        cls = type(self)
        for name in cls.__annotations__:
            if name not in given and not hasattr(cls, name):
                raise TypeError(f"{cls.__name__} without {name}")
            vars(self)[name] = given.pop(name) if name in given else getattr(cls, name)
        if given:
            raise TypeError(f"{cls.__name__} has no {', '.join(given)}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    def having(self, **changes: Any) -> Self:
        """The same record with other values in some fields."""
        return type(self)(**{**vars(self), **changes})

    def to_json(self) -> str:
        """As JSON: each record is an object that also names its kind."""
        return json.dumps(self, default=lambda one: {_KIND: type(one).__name__, **vars(one)})

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """From decoded JSON; ignores fields that this version of the class does not have.

        Raises ``ValueError`` if a field is missing.
        """
        try:
            known = cls.__annotations__
            return cls(**{name: value for name, value in data.items() if name in known})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no {cls.__name__}: {error}") from None


def parse_json(text: bytes) -> Any:
    """JSON in which objects that name a kind are records. Raises ``ValueError``."""
    return json.loads(text, object_hook=_read)


def _read(data: dict[str, Any]) -> Any:
    kind = _KINDS.get(str(data.get(_KIND)))
    return kind.from_json(data) if kind else data


def write_frame(stream: IO[bytes], message: Record, blob: bytes = b"") -> None:
    """Sends a message as ASCII; text that is no UTF-8 arrives as it was (``surrogateescape``)."""
    data = message.to_json().encode()
    stream.write(b"%d %d\n" % (len(data), len(blob)) + data + blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[Record, bytes] | None:
    """The next message; None at the end of the stream. Raises ``ValueError`` for anything else."""
    # Ended by the other end, whose end or loss closes the stream.
    head = stream.readline(64)
    if not head:
        return None
    size, blob_size = map(int, head.split())
    if not 0 <= size <= MOST_BYTES or blob_size < 0:
        raise ValueError(f"a message of {size} bytes")
    data, blob = stream.read(size), stream.read(blob_size)
    if len(data) != size or len(blob) != blob_size:
        raise ValueError("cut off within a message")
    message = parse_json(data)
    if not isinstance(message, Record):
        raise ValueError(f"{data[:80]!r} is no message")
    return message, blob
