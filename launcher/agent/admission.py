"""Newcomers come in only after the running group has committed: nothing it did is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from launcher.agent.reserve import write_atomically
from launcher.contract import protocol
from launcher.contract.clock import Clock

LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""


class Admission:
    """Asks the training to commit once nodes wait; called many times a second, never blocks."""

    def __init__(self, node_dir: Path, admit: Callable[[], None], clock: Clock) -> None:
        self._node_dir, self._admit, self._clock = node_dir, admit, clock
        self._asked_at: float | None = None

    def new_attempt(self) -> None:
        """The workers were started anew; forgets what their predecessors were asked."""
        if self._asked_at is not None:
            self._asked_at = None
            request = self._node_dir / protocol.STOP_REQUEST_FILE
            if is_for_resize(self._node_dir):
                request.unlink(missing_ok=True)
            (self._node_dir / protocol.STOP_ACK_FILE).unlink(missing_ok=True)

    def look(self, newcomers: int) -> None:
        """Lets them in at once where the training does not speak, else after its answer."""
        if newcomers == 0:
            return
        now = self._clock.monotonic()
        if not (self._node_dir / protocol.STOP_READY_FILE).exists():
            self._admit()
        elif self._asked_at is None:
            if not (self._node_dir / protocol.STOP_REQUEST_FILE).exists():
                self._asked_at = now
                self._ask()
        elif (self._node_dir / protocol.STOP_ACK_FILE).exists() or now - self._asked_at > LIMIT_S:
            self._admit()

    def _ask(self) -> None:
        at = self._clock.wall()
        request = {"reason": protocol.STOP_REASON_RESIZE, "at": at, "deadline": at + LIMIT_S}
        # Where it cannot be written, the newcomers come in once the time for an answer is over.
        with contextlib.suppress(OSError):
            write_atomically(self._node_dir / protocol.STOP_REQUEST_FILE, json.dumps(request))


def is_for_resize(node_dir: Path) -> bool:
    """Whether the present request only makes room for other nodes."""
    try:
        request = json.loads((node_dir / protocol.STOP_REQUEST_FILE).read_text())
        return bool(request["reason"] == protocol.STOP_REASON_RESIZE)
    except (OSError, ValueError, KeyError, TypeError):
        return False
