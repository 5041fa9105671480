"""Reads records from plain data, checked against their types."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

Record = TypeVar("Record")
Jsonable = dict[str, Any]
"""A record as plain data, as ``json`` reads and writes it."""


def parse_record(kind: type[Record], data: object) -> Record:
    """A dataclass from what ``asdict`` made of one. Raises ``ValueError`` for anything else."""
    record: Record = _adapter(kind).validate_python(data)
    return record


@functools.cache
def _adapter(kind: Any) -> Any:
    # Imported late: it takes longer than the rest of the launcher together.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
