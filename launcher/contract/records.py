"""Dataclasses as JSON that holds only what differs from the defaults.

Reading fills the defaults in. So a default may change only together with the schema number of what
was written: the plan's or the node task's.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any


def dump_record(value: object) -> str:
    """Dataclasses and plain values on one line."""
    # Without indent: json's fast encoder cannot indent, which takes seconds at 10,000 nodes.
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
