"""The room of target ``starter``: its only command is ``launcher node``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.targets.room import Room

if TYPE_CHECKING:
    from launcher.follow.target import Target


class StarterRoom(Room):
    """Nodes that srun, mpirun or a site's own starter starts."""

    name = "starter"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.starter.target import StarterTarget

        return StarterTarget(run_root)

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """As ``Room.is_here``: never, but one of several processes is told what to do instead."""
        from launcher.targets.starter.starters import check_alone

        check_alone(environ)
        return False
