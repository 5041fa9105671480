"""The training's part of the run's ledger: one JSON line for each event.

``launcher/contract/protocol.py`` holds the schema. Standard library only. A full disk never stops
the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from fabric_train.worker_env import LEDGER_DIR, LEDGER_SCHEMA, TRAIN_LEDGER, WorkerEnv

LEAST_INTERVAL_S = 0.5
"""Least seconds between two progress events; a kill hides the work since the last one."""
KEPT_EVENTS = 2000
"""The interval is at least the start's age divided by this, so an old start writes less often."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened; ``NAME`` is the ``event`` of its line, the fields are its other keys."""

    NAME: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class TrainStarted(Event):
    """The workers are there; ``heals``: they go on from an earlier world, with its state."""

    NAME = "train-started"
    world_size: int
    generation: int | None
    heals: bool = False


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """An event after ``step`` optimizer steps, counted over all starts."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Loaded(StepEvent):
    """The newest checkpoint, if there is one, is loaded."""

    NAME = "loaded"


@dataclass(frozen=True, kw_only=True)
class Planned(StepEvent):
    """The training goes on from ``step`` and, unless something ends it before, to ``until``."""

    NAME = "planned"
    until: int


class FirstStep(StepEvent):
    """This start's first step has ended."""

    NAME = "first-step"


class TrainEnded(StepEvent):
    """The model is trained and tested."""

    NAME = "train-ended"


@dataclass(frozen=True, kw_only=True)
class ProgressMade(StepEvent):
    """Samples, and seconds that saves blocked, since the last event of this kind.

    ``lr``: the last optimizer step's, in its first parameter group.
    """

    NAME = "progress"
    loss: float | None
    lr: float | None
    save_stall_s: float
    samples: int


class Trained(ProgressMade):
    """The last step has ended."""

    NAME = "trained"


@dataclass(frozen=True, kw_only=True)
class Saved(StepEvent):
    """A checkpoint was committed; saving it blocked the training for ``blocked_s``."""

    NAME = "saved"
    blocked_s: float
    write_s: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SaveFailed(StepEvent):
    """A checkpoint could not be written."""

    NAME = "save-failed"
    error: str


@dataclass(frozen=True, kw_only=True)
class StopAgreed(StepEvent):
    """All ranks agreed to commit now; ``reason`` is ``stop`` or ``commit``."""

    NAME = "stop-agreed"
    reason: str


@dataclass(frozen=True, kw_only=True)
class LedgerSource:
    """Which process writes: the keys that all its lines share."""

    schema: int = LEDGER_SCHEMA
    source: str = "train"
    node_index: int = 0
    incarnation: int = 0
    attempt: int = 0
    rank: int = 0


class Ledger:
    """The events of one start; with ``path`` None it writes nothing, as on all ranks but 0."""

    def __init__(
        self,
        path: Path | None,
        place: LedgerSource | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self._wall_clock = path, clock, wall_clock
        self._is_first = True
        self._lr: Any = None
        if path is not None:
            watch_optimizers(self._on_optimizer_step)
        self._fixed = asdict(place or LedgerSource())
        self._began_at = self._told_at = clock()
        self._stall_s = 0.0
        self._samples = 0

    def write(self, event: Event) -> None:
        """Appends one event at once, so that a kill cannot hide it."""
        if self._path is None:
            return
        # One start may train in several parts, each of which loads and has a first step.
        self._is_first |= isinstance(event, Loaded)
        now = {"at": self._wall_clock(), "monotonic_s": self._clock()}
        content = {**self._fixed, "event": event.NAME, **now, **asdict(event)}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # One write, so that a reader never sees half a line of a living writer.
                os.write(handle, (json.dumps(content) + "\n").encode())
            finally:
                os.close(handle)

    def on_stall(self, seconds: float) -> None:
        """Adds the seconds that a save blocked the training."""
        self._stall_s += seconds

    def on_step(self, step: int, samples: int, read_loss: Callable[[], float]) -> None:
        """Notes that ``step`` steps are done; ``samples``: of all ranks in this step.

        Reads the loss only when it writes.
        """
        if self._path is None:
            return
        if self._is_first:
            self._is_first = False
            self.write(FirstStep(step=step))
            return
        self._samples += samples
        now = self._clock()
        interval_s = max(LEAST_INTERVAL_S, (now - self._began_at) / KEPT_EVENTS)
        if now - self._told_at >= interval_s:
            self._write_progress(ProgressMade, step, read_loss())

    def _on_optimizer_step(self, optimizer: Any, *_: object) -> None:
        # It may be a tensor on a device: only ``_write_progress`` waits for it.
        self._lr = optimizer.param_groups[0]["lr"]

    def on_trained(self, step: int, loss: float) -> None:
        """Writes that the last step is done."""
        self._write_progress(Trained, step, loss)

    def _write_progress(self, event: type[ProgressMade], step: int, loss: float) -> None:
        self.write(
            event(
                step=step,
                loss=loss if loss == loss else None,  # JSON has no NaN
                lr=None if self._lr is None else float(self._lr),
                save_stall_s=round(self._stall_s, 6),
                samples=self._samples,
            )
        )
        self._told_at = self._clock()
        self._stall_s, self._samples = 0.0, 0


def watch_optimizers(see: Callable[..., None]) -> None:
    """Calls ``see(optimizer, ...)`` before each step of any optimizer of this process."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(see)


def open_ledger(env: WorkerEnv) -> Ledger:
    """This start's ledger in RUN_DIR; rank 0 writes, because it waits for all other ranks."""
    rank = env.world.rank if env.world else 0
    restarts = env.world.restart_count if env.world else 0
    if env.run_dir is None or rank != 0:
        return Ledger(None)
    place = LedgerSource(
        node_index=env.node_index or 0,
        incarnation=env.incarnation or 0,
        attempt=restarts if env.node_attempt is None else env.node_attempt,
        rank=rank,
    )
    path = env.run_dir / LEDGER_DIR / TRAIN_LEDGER.format(**asdict(place))
    return Ledger(path, place)
