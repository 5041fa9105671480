"""The room of target ``docker``."""

from __future__ import annotations

from launcher.targets.room import Room


class DockerRoom(Room):
    """One container for each node, on one Docker engine."""

    name = "docker"
    opens = "launcher.targets.docker.target:DockerTarget"
