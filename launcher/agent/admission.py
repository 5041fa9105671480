"""Newcomers come in only after the running group has committed, so that no work is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launcher.agent.stopping import StopFiles
from launcher.contract import protocol
from launcher.contract.clock import Clock

LIMIT_S = 60.0
"""How long the training may take to commit before the newcomers come in anyway."""


class Admission:
    """Asks the training to commit once nodes wait; called many times a second, never blocks."""

    def __init__(self, node_dir: Path, admit: Callable[[], None], clock: Clock) -> None:
        self._files, self._admit, self._clock = StopFiles(node_dir), admit, clock
        self._asked_at: float | None = None

    def new_attempt(self) -> None:
        """The workers were started anew; forgets what the old ones were asked."""
        if self._asked_at is not None:
            self._asked_at = None
            self._files.forget_resize()

    def look(self, newcomers: int) -> None:
        """Lets them in at once where the training does not speak, else after its answer."""
        if newcomers == 0:
            return
        now = self._clock.monotonic()
        if not self._files.training_speaks():
            self._admit()
        elif self._asked_at is None:
            if not self._files.is_asked():
                self._asked_at = now
                at = self._clock.wall()
                self._files.ask(protocol.STOP_REASON_RESIZE, at=at, deadline=at + LIMIT_S)
        elif self._files.has_answer() or now - self._asked_at > LIMIT_S:
            self._admit()
