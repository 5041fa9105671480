"""Files that are replaced in one step, and reserves for those that must be written on a full disk.

A reserve is a file of zeros next to the file it is for. On a full disk the text is written into the
reserve, which is then renamed. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

EXIT_BYTES = 1024
ERROR_BYTES = 4096
REQUEST_BYTES = 512
OUTCOME_BYTES = 16384


def reserve(path: Path, size: int) -> None:
    """Sets ``size`` bytes aside for ``path``. Idempotent; raises OSError where there is no room."""
    place = _reserve_of(path)
    with contextlib.suppress(OSError):
        if place.stat().st_size >= size:
            return
    try:
        place.write_bytes(bytes(size))
    except OSError:
        _remove(place)
        raise


def release(path: Path) -> None:
    """Gives up what was set aside for ``path``. Idempotent."""
    _remove(_reserve_of(path))


def write_atomically(path: Path, text: str, *shorter: str) -> None:
    """Replaces a file in one step, so that no reader sees half of it.

    On a full disk the first of the texts that fits goes into the reserve, if there is one.
    Raises OSError where nothing could be written; the file is then as it was before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        if not write_into_reserve(path, text, *shorter):
            raise
    else:
        release(path)


def write_into_reserve(path: Path, *texts: str) -> bool:
    """Whether the reserve of ``path`` took one of the texts, and is that file now."""
    place = _reserve_of(path)
    with contextlib.suppress(OSError):
        size = place.stat().st_size
        data = next((data for text in texts if len(data := text.encode()) <= size), None)
        if data is not None:
            # In place: a file that is truncated first would give its room to others.
            with place.open("r+b", buffering=0) as file:
                if file.write(data) == len(data):
                    file.truncate(len(data))
                    place.replace(path)
                    return True
    return False


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
