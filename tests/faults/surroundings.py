"""What is made around a run, and what is done to one that is ready. Rows name these functions.

Those of the first kind are given the project's folder and give variables for whoever types the
command; those of the second kind are given the command that runs (``making.Started``).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.disks import mounted


@contextmanager
def small_disk(project: Path) -> Iterator[dict[str, str]]:
    """A disk of 1 MiB at ``disk``."""
    with mounted(project / "disk", "size=1m"):
        yield {}


@contextmanager
def taken_port(project: Path) -> Iterator[dict[str, str]]:
    """A port that somebody else listens on, as the variable PORT."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield {"PORT": str(listener.getsockname()[1])}
