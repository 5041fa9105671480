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
    opens = "launcher.targets.local.target:LocalTarget"
    is_tried_unasked = True

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        early = None
        if arguments is not None and arguments.command == "run":
            from launcher.targets.local.early import start_early

            # Now: importing torch takes longer than all that comes before the agent's start.
            if early := start_early(run_root, arguments):
                arguments.until_end.callback(early.end)
        from launcher.targets.local.target import LocalTarget

        return LocalTarget(run_root, early=early)
