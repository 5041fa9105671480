"""Files that hosts leave in a folder, to see whether they share it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.targets.hosts.program.messages import FindTokens, LeaveToken

LOOK_S = 0.1


def nearest_folder(path: str) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = Path(os.path.expanduser(path))
    return next(place for place in (folder, *folder.parents) if place.exists())


def leave_token(asked: LeaveToken) -> Path:
    """Makes a token. Raises ``OSError`` where nothing can be written there."""
    token = nearest_folder(asked.folder) / asked.name
    token.touch()
    return token


def find_tokens(asked: FindTokens) -> list[str]:
    """Looks for tokens until all are there, or the time is over."""
    folder = nearest_folder(asked.folder)
    deadline = time.monotonic() + asked.wait_s
    while True:
        _touch(folder)
        found = [name for name in asked.names if (folder / name).exists()]
        if len(found) == len(asked.names) or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)


def _touch(folder: Path) -> None:
    """Makes NFS ask its server: what it knows of the folder's files may be a minute old."""
    path = folder / f".launcher-look-{os.getpid()}-{time.monotonic_ns()}"
    with suppress(OSError):
        path.touch(exist_ok=False)
        path.unlink()
