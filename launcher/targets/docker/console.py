"""What containers print, kept byte for byte in files of the run folder."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import APIClient

JOIN_LIMIT_S = 5.0
"""How long a follower may take to write what is left after its container has ended."""
TAIL_LINES = 100
"""Compared to see whether a file is complete; reading a whole log takes seconds at 50 MB."""


class Consoles:
    """Followers of containers' output, one thread each.

    By the engine's log rather than by attaching: attached, a launcher that is suspended would
    block the training as soon as a pipe is full.
    """

    def __init__(self) -> None:
        self._followers: dict[str, threading.Thread] = {}

    def follow(self, api: APIClient, id: str, path: Path) -> None:
        """Writes a container's output to a file until the container ends. Does not block."""
        follower = threading.Thread(target=_follow, args=(api, id, path), daemon=True)
        self._followers[id] = follower
        follower.start()

    def is_followed(self, id: str) -> bool:
        """Whether this process is writing that container's output."""
        return id in self._followers and self._followers[id].is_alive()

    def save(self, api: APIClient, id: str, path: Path) -> None:
        """Makes the file hold all that the container has printed so far. Idempotent.

        Waits for the follower, so only for a container that has ended or is not followed.
        Does nothing where the run folder is gone.
        """
        if id in self._followers:
            self._followers.pop(id).join(JOIN_LIMIT_S)
        # On a full disk the engine's own log has the rest, as long as the container is there.
        with contextlib.suppress(OSError):
            if path.parent.is_dir():
                path.touch()
                _complete(api, id, path)


def _follow(api: APIClient, id: str, path: Path) -> None:
    # Whatever ends a stream (engine restarted, container removed, disk full): what is missing
    # then is what `save` completes.
    with contextlib.suppress(Exception), path.open("wb", buffering=0) as file:
        for chunk in api.logs(id, stream=True, follow=True):
            file.write(chunk)


def _complete(api: APIClient, id: str, path: Path) -> None:
    """Appends what a file lacks; the engine's followers may lose a log's last lines."""
    size = path.stat().st_size
    tail = api.logs(id, tail=TAIL_LINES)
    with path.open("r+b") as file:
        file.seek(max(size - len(tail), 0))
        if file.read() == tail:
            return
        # At its own place, not at the end of the file: a second launcher may do the same.
        file.seek(size)
        file.write(api.logs(id)[size:])
