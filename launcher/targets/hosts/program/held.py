"""Asks a held node of this host to fork a run's node, and follows the forked node."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.targets.held_child import HeldChild, write
from launcher.targets.hosts.program.wire import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.targets.hosts.program.messages import KeeperSpec

SHOWN_S = 1.0


class KeptChild(HeldChild):
    """The forked node as its keeper sees it, which also shows the held node that the run lives."""

    def __init__(self, spec: KeeperSpec, env: Mapping[str, str]) -> None:
        assert spec.held is not None
        hold_dir, asked = Path(spec.held.run_dir), json.loads(spec.held.request)
        super().__init__(hold_dir, spec.node_index, Path(asked["record_dir"]))
        self._user, self._show_at = hold_dir / protocol.HOLD_USER, 0.0
        # A container has an environment of its own, and pids that say nothing here.
        given = {**spec.env, **spec.secrets} if asked.get("adds_env") else env
        write(self._user, spec.held.user)
        self.ask(json.dumps({**asked, "env": list(given.items())}))

    def poll(self) -> int | None:
        if (now := time.monotonic()) > self._show_at:
            self._show_at = now + SHOWN_S
            with suppress(OSError):
                os.utime(self._user)
        return super().poll()
