"""What a person sees of a run: rank 0 plain, the others behind a prefix, one live line."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from typing import TextIO

from launcher.clock import Clock, SystemClock
from launcher.outlet import Outlet

PREFIX_COLOURS = (36, 33, 35, 32, 34, 31)
PROGRESS_INTERVAL_S = 5.0
"""How often a progress update becomes a plain line where no terminal is attached."""


class Console:
    """Writes whole lines to one stream; on a terminal the last line may be a progress bar."""

    def __init__(
        self,
        stream: TextIO | Outlet,
        *,
        terminal: bool,
        colour: bool,
        clock: Clock | None = None,
        spell: Callable[[str], str] | None = None,
    ) -> None:
        self._stream = stream
        self._spell = spell or str
        self._terminal = terminal
        self._colour = colour and terminal
        self._clock = clock or SystemClock()
        self._progress = ""
        self._last_progress_at = float("-inf")

    def line(self, text: str, *, prefix: str = "", colour_key: int = 0) -> None:
        """One line, behind a coloured prefix where there is one."""
        if prefix:
            text = f"{self._painted(prefix, colour_key)} {text}"
        self._write(text + "\n")

    def note(self, text: str) -> None:
        """The launcher's own word."""
        self.line(self._spell(text), prefix="launcher:", colour_key=-1)

    def progress(self, text: str) -> None:
        """An update of the one live line; without a terminal a plain line now and then."""
        if self._terminal:
            self._progress = text
            self._write("")
        elif self._clock.monotonic() - self._last_progress_at >= PROGRESS_INTERVAL_S:
            self._last_progress_at = self._clock.monotonic()
            self._write(text.strip() + "\n")

    def close(self) -> None:
        """Leaves the last progress on the screen and the cursor on a line of its own."""
        if self._progress:
            self._progress = ""
            self._put("\n")

    def end_progress(self) -> None:
        """Drops the live line: what it counted is over."""
        self._progress = ""

    def _write(self, text: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns
            # Clear the live line, write, draw it again: no line is ever torn by another.
            text = f"\r\x1b[K{text}{self._progress[: width - 1]}"
        self._put(text)

    def _put(self, text: str) -> None:
        # A closed terminal or pipe must not end the run that is shown there.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def _painted(self, prefix: str, colour_key: int) -> str:
        if not self._colour:
            return prefix
        code = 1 if colour_key < 0 else PREFIX_COLOURS[colour_key % len(PREFIX_COLOURS)]
        return f"\x1b[{code}m{prefix}\x1b[0m"
