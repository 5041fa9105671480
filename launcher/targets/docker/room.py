"""The room of target ``docker``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.targets.room import Room

if TYPE_CHECKING:
    from launcher.follow.target import Target


class DockerRoom(Room):
    """One container for each node, on one Docker engine."""

    name = "docker"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.docker.target import DockerTarget

        return DockerTarget(run_root)
