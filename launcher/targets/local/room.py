"""The room of target ``local``."""

from __future__ import annotations

from launcher.targets.room import Room


class LocalRoom(Room):
    """Processes of this machine."""

    name = "local"
    opens = "launcher.targets.local.target:LocalTarget"
