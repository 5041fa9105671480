"""The room of target ``starter``: its only command is ``launcher node``."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.targets.room import Note, Room


class StarterRoom(Room):
    """Nodes that srun, mpirun or a site's own starter starts."""

    name = "starter"
    opens = "launcher.targets.starter.target:StarterTarget"

    def is_here(self, environ: Mapping[str, str], note: Note) -> bool:
        """As ``Room.is_here``: always False, but raises in one of several started processes."""
        from launcher.targets.starter.starters import check_alone

        check_alone(environ)
        return False
