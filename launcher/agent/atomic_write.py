"""Files that are replaced in one step. Standard library only; the program on hosts has this too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replaces a file in one step, so that no reader sees half of it.

    Raises OSError, with the file's name, where it could not be written; the file is then as it was
    before.
    """
    temporary = path.with_name(f".{path.name}.{new_number()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        # A write's error names no file.
        raise OSError(error.errno, error.strerror, str(path)) from error


def new_number() -> int:
    """A random number for a name. Not the pid: another host that shares the disk may use it too."""
    return int.from_bytes(os.urandom(6), "big")
