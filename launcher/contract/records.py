"""Dataclasses as JSON: fields with their default are not written, and reading checks the types.

Reading fills the defaults in. So a default may change only together with the schema number of what
was written: the plan's or the node task's.

Pydantic reads only job files: nodes do not have it, and importing it and building its schemas takes
longer than all else that ``launcher ps`` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Reader = Callable[[Any], Any]
"""Turns plain data into the value of a field, or raises ``ValueError``."""
MOST_BYTES = 64 << 20
"""The most that is read of a file in a run folder; a longer file counts as unreadable."""
PIECE_BYTES = 1 << 18
ACCEPTED = {str: (str,), int: (int,), bool: (bool,), float: (float, int)}
"""The types of JSON values that each plain type accepts."""


def dump_record(value: object) -> str:
    """Dataclasses and plain values on one line."""
    # Without indent: the only encoder that can indent takes seconds at 10,000 nodes.
    return json.dumps(value, default=changed_fields)


def changed_fields(record: Any) -> dict[str, object]:
    """The fields whose value is not the default, and those without a default."""
    kind: Any = type(record)
    defaults = _defaults_of(kind)
    return {
        name: value
        for name, value in vars(record).items()
        if name not in defaults or value != defaults[name]
    }


@functools.cache
def _defaults_of(kind: Any) -> Mapping[str, object]:
    fields = dataclasses.fields(kind)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def parse_text(kind: type[Record], text: str, schema: int) -> Record:
    """A record from JSON that names its ``schema`` too. Raises ``ValueError`` for anything else."""
    data = parse_object(text)
    if data.get("schema") != schema:
        raise ValueError(f"it is not a {kind.__name__} of schema {schema}")
    return parse_record(kind, data)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object that anybody may have written. Raises ``ValueError`` for anything else."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return data if isinstance(data, dict) else _refuse(data, ["a JSON object"])


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return parse_object(read_limited(path))
    return {}


def read_limited(path: Path) -> bytes:
    """The bytes of a file that a script may have written.

    Raises ``OSError``, or ``ValueError`` if it is larger than ``MOST_BYTES``.
    """
    data = bytearray()
    with path.open("rb") as file:
        # In pieces, as a read takes memory for all that it may get.
        while piece := file.read(PIECE_BYTES):
            data += piece
            if len(data) > MOST_BYTES:
                raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return bytes(data)


def parse_record(kind: type[Record], data: object) -> Record:
    """A dataclass from what ``asdict`` made of one. Raises ``ValueError`` for anything else.

    Unknown names are ignored. A class with a ``parse_data`` is read by that.
    """
    record: Record = _reader(kind)(data)
    return record


def _make_reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_one_of([_reader(arg) for arg in args])
    if origin is tuple and args[1:] == (...,):
        item, accepted = _reader(args[0]), ["a list"]
        return lambda value: (
            tuple(map(item, value)) if _is_list(value) else _refuse(value, accepted)
        )
    if origin is tuple:
        return _read_places([_reader(arg) for arg in args])
    if origin in (dict, Mapping):
        return _read_mapping(_reader(args[0]), _reader(args[1]))
    if origin is Literal:
        return lambda value: value if value in args else _refuse(value, map(repr, args))
    if kind in ACCEPTED:
        plain, name = ACCEPTED[kind], [kind.__name__]
        # Not isinstance: True is an int.
        return lambda value: kind(value) if type(value) in plain else _refuse(value, name)
    if kind in (object, Any):
        return lambda value: value
    if kind is types.NoneType:
        return lambda value: value if value is None else _refuse(value, ["null"])
    is_enum = issubclass(kind, enum.Enum)
    reader: Reader = kind if is_enum else vars(kind).get("parse_data") or _read_fields(kind)
    return reader


_reader: Callable[[Any], Reader] = functools.cache(_make_reader)


def _refuse(value: object, accepted: Iterable[str]) -> Any:
    raise ValueError(f"found {repr(value)[:60]}; accepted: {' or '.join(accepted)}")


def _read_one_of(readers: list[Reader]) -> Reader:
    def read_union(value: Any) -> Any:
        reasons = []
        for reader in readers:
            try:
                return reader(value)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError("; ".join(reasons))

    return read_union


def _read_places(items: list[Reader]) -> Reader:
    def read_places(value: Any) -> Any:
        if not _is_list(value) or len(value) != len(items):
            _refuse(value, [f"a list of {len(items)}"])
        return tuple([reader(part) for reader, part in zip(items, value, strict=True)])

    return read_places


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _read_mapping(key: Reader, item: Reader) -> Reader:
    def read_mapping(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, ["a mapping"])
        return {key(name): item(each) for name, each in value.items()}

    return read_mapping


def _read_fields(kind: Any) -> Reader:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    no_default = (dataclasses.MISSING, dataclasses.MISSING)
    needed = [f.name for f in fields if (f.default, f.default_factory) == no_default]

    def read_fields(data: Any) -> Any:
        if not isinstance(data, dict):
            _refuse(data, [f"the fields of {kind.__name__}"])
        if missing := [name for name in needed if name not in data]:
            raise ValueError(f"field {missing[0]} of {kind.__name__} is missing")
        values = {}
        for name, reader in readers.items():
            if name in data:
                try:
                    values[name] = reader(data[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return kind(**values)

    return read_fields
