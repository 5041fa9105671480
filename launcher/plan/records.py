"""Reads records from plain data, checked against their types."""

from __future__ import annotations

from typing import Any, TypeVar

Record = TypeVar("Record")
Jsonable = dict[str, Any]
"""A record as plain data, as ``json`` reads and writes it."""


_ADAPTERS: dict[object, Any] = {}


def parse_record(kind: type[Record], data: object) -> Record:
    """A dataclass from what ``asdict`` made of one. Raises ``ValueError`` for anything else."""
    if kind not in _ADAPTERS:
        # Imported late: it takes longer than the rest of the launcher together.
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    record: Record = _ADAPTERS[kind].validate_python(data)
    return record
