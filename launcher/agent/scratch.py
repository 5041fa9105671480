"""A private folder for as long as its owner lives, however it dies. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "launcher-agent-"
_OWNER = "owner"


class Scratch:
    """A folder whose lock says that its owner lives; the kernel lets go of it with the owner."""

    def __init__(self, root: Path | None = None) -> None:
        """Makes the folder, and removes those of owners that were killed."""
        root = root or Path(tempfile.gettempdir())
        _sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        made = self.path / f".{_OWNER}"
        try:
            self._lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            self.remove()
            raise
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Seen by sweeps only now that it is locked.
        made.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        # Folders of other users cannot be opened; one without a lock is just being made.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
