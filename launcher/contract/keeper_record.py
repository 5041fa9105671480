"""The record of the process that runs a node: a host's keeper, or an agent on this machine.

Standard library only, and no newer than Python 3.9: hosts import it with a Python of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

RECORD = "keeper.json"
"""In the node's folder: pid and start; after the end also exit_code, out_of_memory, detail."""
RECORD_BYTES = 4096


def write_record(folder: Path, record: Mapping[str, object]) -> None:
    """Replaces the record; on a full disk it overwrites the old one in place."""
    data = json.dumps(record).encode().ljust(RECORD_BYTES)
    temporary = folder / f".{RECORD}"
    try:
        temporary.write_bytes(data)
        temporary.replace(folder / RECORD)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            with (folder / RECORD).open("r+b") as file:
                file.write(data[:RECORD_BYTES])


def read_record(folder: Path) -> dict[str, Any]:
    """The record; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text())
        if isinstance(record, dict):
            return record
    return {}
