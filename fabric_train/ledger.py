"""The training's part of the run's ledger: what its time went to, one JSON line per event.

``launcher/contract/protocol.py`` holds the schema; any script may write it, in three lines.
Standard library only. A disk that refuses never stops the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabric_train.worker_env import LEDGER_DIR, LEDGER_SCHEMA, TRAIN_LEDGER, WorkerEnv

LEAST_INTERVAL_S = 0.5
"""Between two progress events: what a kill can hide of the work before it."""
KEPT_EVENTS = 2000
"""Progress events of one start, about: the interval grows with the training's age."""


class Ledger:
    """One start's events; ``path`` None writes nothing, on the ranks that do not speak for all."""

    def __init__(
        self,
        path: Path | None,
        *,
        node_index: int = 0,
        incarnation: int = 0,
        attempt: int = 0,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self._wall_clock = path, clock, wall_clock
        self._fixed = {
            "schema": LEDGER_SCHEMA,
            "source": "train",
            "node_index": node_index,
            "incarnation": incarnation,
            "attempt": attempt,
            "rank": rank,
        }
        self._began_at = self._told_at = clock()
        self._stall_s = 0.0
        self._samples = 0

    def write(self, event: str, **values: Any) -> None:
        """Appends one event, at once: whoever is killed next has told it."""
        if self._path is None:
            return
        now = {"at": self._wall_clock(), "monotonic_s": self._clock()}
        line = json.dumps({**self._fixed, "event": event, **now, **values}) + "\n"
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # One write, so that a reader never sees half a line of a living writer.
                os.write(handle, line.encode())
            finally:
                os.close(handle)

    def on_stall(self, seconds: float) -> None:
        """The training stood still for a checkpoint."""
        self._stall_s += seconds

    def on_step(self, step: int, samples: int, read_loss: Callable[[], float]) -> None:
        """``step`` steps are done, ``samples`` in this one; writes seldom, and only then reads."""
        self._samples += samples
        if self._path is None:
            return
        now = self._clock()
        interval_s = max(LEAST_INTERVAL_S, (now - self._began_at) / KEPT_EVENTS)
        if now - self._told_at >= interval_s:
            self.tell_progress("progress", step, read_loss())

    def tell_progress(self, event: str, step: int, loss: float) -> None:
        """Writes ``progress`` or ``trained``, with what happened since the last of them."""
        self.write(
            event,
            step=step,
            loss=loss if loss == loss else None,  # JSON knows no NaN
            save_stall_s=round(self._stall_s, 6),
            samples=self._samples,
        )
        self._told_at = self._clock()
        self._stall_s, self._samples = 0.0, 0


def open_ledger(env: WorkerEnv) -> Ledger:
    """The ledger of this start in RUN_DIR; rank 0 writes, since it waits for all others anyway."""
    rank = env.world.rank if env.world else 0
    place = {
        "node_index": env.node_index or 0,
        "incarnation": env.incarnation or 0,
        "attempt": env.node_attempt
        if env.node_attempt is not None
        else (env.world.restart_count if env.world else 0),
        "rank": rank,
    }
    path = (
        env.run_dir / LEDGER_DIR / TRAIN_LEDGER.format(**place)
        if env.run_dir and rank == 0
        else None
    )
    return Ledger(path, **place)
