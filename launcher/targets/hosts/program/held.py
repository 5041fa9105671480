"""A node that a held node of this host starts, as a fork of itself: asked for, and followed."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.keeper_record import read_record
from launcher.contract.process_stat import lives
from launcher.targets.hosts.program.node_state import read_state
from launcher.targets.hosts.program.records import TYPE_CHECKING
from launcher.targets.process_table import send

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.targets.hosts.program.messages import HeldNode

TAKEN_LIMIT_S = 120.0
"""How long it may take to begin: where packages have changed it imports torch first."""
SHOWN_S = 1.0
KILLED = 137


class HeldChild:
    """The started node, as its keeper sees it: no child of this process."""

    def __init__(self, held: HeldNode, node_dir: Path, env: Mapping[str, str]) -> None:
        self._folder, self._request, self._user = node_dir, Path(held.request_file), held.user_file
        self._limit_at, self._show_at = time.monotonic() + TAKEN_LIMIT_S, 0.0
        self.why = ""
        asked = {**json.loads(held.request), "env": list(env.items())}
        # It holds the secrets, and is gone once the held node has read it.
        mask = os.umask(0o077)
        try:
            # Of a hold that has ended the folder is gone.
            with suppress(FileNotFoundError):
                write_atomically(Path(held.user_file), held.user)
                write_atomically(self._request, json.dumps(asked))
        finally:
            os.umask(mask)

    def poll(self) -> int | None:
        """Its exit code as in a shell; None while it runs, or is about to."""
        if (now := time.monotonic()) > self._show_at:
            self._show_at = now + SHOWN_S
            with suppress(OSError):
                os.utime(self._user)
        record = read_record(self._folder)
        if record.get("pid", os.getpid()) != os.getpid():
            return None if lives(record) else self._read_code()
        # It has not begun, and the record is this process' own.
        is_there = read_state(self._request.parent).state == "running"
        if is_there and now < self._limit_at:
            return None
        self._request.unlink(missing_ok=True)
        self.why = f"its node of the hold {'does not answer' if is_there else 'has ended'}"
        return KILLED

    def send(self, signum: int) -> None:
        """A signal to it; where it has not begun, it will not."""
        self._limit_at = 0.0
        if (pid := read_record(self._folder).get("pid", os.getpid())) != os.getpid():
            send((pid,), signum)

    def _read_code(self) -> int:
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self._folder / protocol.OUTCOME_FILE).read_text())["exit_code"])
        return KILLED
