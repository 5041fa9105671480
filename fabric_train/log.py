"""Gives loggers the rows of the steps that a committed checkpoint covers, each row once.

A row waits until the checkpoint of its step, or of a later one, is committed. That checkpoint
carries the rows that some logger has not confirmed, and a start asks each logger what it has. So a
step that a restart repeats is logged once, and a fenced group, which cannot commit, logs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fabric_train.checkpointing.commit import describe
from fabric_train.loggers import Logger, Row
from fabric_train.loop.preemption import finish_before_exit

MOST_KEPT = 10_000
"""Rows that a rank without loggers keeps: more than any interval between checkpoints has."""


class Log:
    """The rows of one training, on rank 0; without loggers, as on other ranks, it does nothing.

    With ``keeps`` it keeps rows for another rank 0 that this rank may become.
    """

    def __init__(
        self,
        loggers: Iterable[Logger] = (),
        rows: Sequence[Row] = (),
        *,
        keeps: bool = False,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outlets, self._keeps = [Outlet(logger, say, clock) for logger in loggers], keeps
        self._rows = dict(rows)
        self._committed_step = -1
        self._thread: threading.Thread | None = None
        finish_before_exit(self.join)

    @property
    def has_loggers(self) -> bool:
        """Whether it gives its rows to anybody."""
        return bool(self._outlets)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds to the row of ``step``, the present step; call it before the step is saved."""
        if self._outlets or self._keeps:
            self._rows.setdefault(step, {}).update(values)
            if self._keeps and len(self._rows) > MOST_KEPT:
                del self._rows[min(self._rows)]

    def state(self) -> list[Row]:
        """What a checkpoint of the present step carries; JSON."""
        written = min((outlet.written_step for outlet in self._outlets), default=-1)
        self._rows = {step: row for step, row in self._rows.items() if step > written}
        return [(step, dict(row)) for step, row in sorted(self._rows.items())]

    def restore(self, rows: Sequence[Any], step: int) -> None:
        """Goes on from the checkpoint of ``step``, which carried ``rows``."""
        for row_step, values in rows:
            self.add(row_step, values)
        self.commit(step)

    def commit(self, step: int) -> None:
        """Hands rows over, in a thread, once the checkpoint of ``step`` is committed."""
        self._committed_step = max(step, self._committed_step)
        if self._outlets and not (self._thread and self._thread.is_alive()):
            rows = self._drain_rows()
            self._thread = threading.Thread(
                target=self._hand_over, args=(rows,), name="loggers", daemon=True
            )
            self._thread.start()

    def join(self, limit_s: float | None) -> None:
        """Waits up to ``limit_s`` for rows that are being handed over; from any thread."""
        if self._thread is not None:
            self._thread.join(limit_s)

    def close(self) -> None:
        """After a successful training: hands over all committed rows, and waits for that."""
        self.join(None)  # the loggers write files, which ends or fails
        self._hand_over(self._drain_rows(), last=True)

    def _drain_rows(self) -> list[Row]:
        return [row for row in self.state() if row[0] <= self._committed_step]

    def _hand_over(self, rows: Sequence[Row], *, last: bool = False) -> None:
        for outlet in self._outlets:
            outlet.write(rows, last=last)


class Outlet:
    """One logger, and the rows that it has."""

    def __init__(
        self, logger: Logger, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._logger, self._say, self._clock = logger, say, clock
        self._known: dict[str, int] | None = None
        self._took_at = clock()
        self._is_failing = False
        self.written_step = -1
        """All rows up to this step are written."""

    def write(self, rows: Sequence[Row], *, last: bool) -> None:
        """Writes the rows that the logger lacks; never raises. A later call retries a failure."""
        if not rows or (not last and self._clock() - self._took_at < self._logger.every_s):
            return
        try:
            if self._known is None:
                self._known = self._logger.read()
            if lacking := list(find_lacking(rows, self._known)):
                self._logger.write(lacking)
            self._known |= {name: step for step, values in rows for name in values}
        except Exception as error:
            self._known = None  # the logger may have taken some rows
            if not self._is_failing:
                self._say(
                    f"{self._logger.name} failed ({describe(error)}); its rows are kept and "
                    "retried after each checkpoint"
                )
            self._is_failing = True
            return
        if self._is_failing:
            self._say(f"{self._logger.name} takes rows again")
        self._is_failing = False
        self._took_at, self.written_step = self._clock(), rows[-1][0]


def find_lacking(rows: Iterable[Row], known: Mapping[str, int]) -> Iterable[Row]:
    """The values of steps after the last known step of the same name. Pure."""
    for step, values in rows:
        lacking = {name: value for name, value in values.items() if step > known.get(name, -1)}
        if lacking:
            yield step, lacking
