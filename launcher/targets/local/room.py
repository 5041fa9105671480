"""The room of target ``local``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.targets.room import Room

if TYPE_CHECKING:
    from launcher.follow.target import Target


class LocalRoom(Room):
    """Processes of this machine."""

    name = "local"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.local.target import LocalTarget

        return LocalTarget(run_root)
