"""How fast the training is, and the bar or lines that rank 0 shows while it runs."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TextIO

from torch import Tensor

from fabric_train.worker_env import ProgressMode
from train.schedule import Schedule

BAR_INTERVAL_S = 0.1
LINES_INTERVAL_S = 5.0
BAR_CELLS = 20
LEAST_BAR_CELLS = 5
KEPT_STEP_TIMES = 10_000
"""Enough for a steady median, and a bound on memory."""


class Meter:
    """Counts and times the steps of this start, without those of earlier starts."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = self._last_step = clock()
        self._stopped: float | None = None
        self._step_times_s: deque[float] = deque(maxlen=KEPT_STEP_TIMES)
        self.steps = 0
        self.first_step_at = 0.0
        """Unix seconds at the end of the first optimizer step, 0 before."""

    def start(self) -> None:
        """Starts the clock, or goes on with it in another part of the training."""
        self._last_step = self._clock()
        self._stopped = None
        if not self.steps:
            self._started = self._last_step

    def on_step(self) -> None:
        """Counts and times a step that has ended."""
        now = self._clock()
        self._step_times_s.append(now - self._last_step)
        self._last_step = now
        self.steps += 1
        if self.steps == 1:
            self.first_step_at = self._wall_clock()

    def stop(self) -> None:
        """Stops the clock when the training has ended."""
        self._stopped = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, checkpoints included."""
        return (self._clock() if self._stopped is None else self._stopped) - self._started

    @property
    def steps_per_s(self) -> float:
        """Steps over elapsed seconds, 0 before the first."""
        return self.steps / self.elapsed_s if self.steps and self.elapsed_s > 0 else 0.0

    @property
    def median_step_s(self) -> float:
        """The median step time, which the first step and checkpoints hardly change."""
        return statistics.median(self._step_times_s) if self._step_times_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Progression:
    """Where the training stands; ``epoch`` and ``step`` count from 1 as people do."""

    epoch: int
    epochs: int
    step: int
    stop_step: int
    loss: float
    samples_per_s: float
    eta_s: float
    mfu: float | None = None


class Progress:
    """Shows the training on one stream, at intervals.

    Reads the loss only when it shows something, because that waits for the device.
    """

    def __init__(
        self,
        mode: ProgressMode | None,
        schedule: Schedule,
        meter: Meter,
        *,
        global_batch_size: int,
        utilization: float = 0.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode = mode
        self._schedule = schedule
        self._meter = meter
        self._global_batch_size = global_batch_size
        self._utilization = utilization
        self._stream = stream or sys.stderr
        self._clock = clock
        self._interval_s = BAR_INTERVAL_S if mode == "bar" else LINES_INTERVAL_S
        self._shown_at = clock()
        self._drawn = 0

    def on_step(self, step: int, loss: Tensor) -> None:
        """Shows the training after ``step`` steps, if the interval is over."""
        if self._mode and self._clock() - self._shown_at >= self._interval_s:
            self._show(self._snapshot(step, loss.item()))

    def on_epoch_end(self, step: int, mean_loss: float) -> None:
        """Shows the training after an epoch, or at the end of the run."""
        if self._mode:
            self._show(self._snapshot(step, mean_loss))

    def close(self) -> None:
        """Ends the bar's line."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = 0

    def _snapshot(self, step: int, loss: float) -> Progression:
        rate = self._meter.steps_per_s
        schedule = self._schedule
        return Progression(
            epoch=schedule.epoch_of(step - 1) + 1,
            epochs=schedule.epochs,
            step=step,
            stop_step=schedule.stop_step,
            loss=loss,
            samples_per_s=rate * self._global_batch_size,
            eta_s=(schedule.stop_step - step) / rate if rate else 0.0,
            mfu=self._utilization * rate * self._global_batch_size or None,
        )

    def _show(self, snapshot: Progression) -> None:
        self._shown_at = self._clock()
        if self._mode == "lines":
            self._stream.write(format_line(snapshot) + "\n")
        else:
            # One column stays free, because some terminals wrap after the last one.
            text = format_bar(snapshot, get_terminal_size().columns - 1)
            self._stream.write("\r" + text.ljust(self._drawn))
            self._drawn = len(text)
        self._stream.flush()


def format_line(snapshot: Progression) -> str:
    """A line for a log."""
    used = f"MFU {snapshot.mfu:.1%}  " if snapshot.mfu is not None else ""
    return (
        f"epoch {snapshot.epoch}/{snapshot.epochs}  step {snapshot.step}/{snapshot.stop_step}  "
        f"loss {snapshot.loss:.4f}  {snapshot.samples_per_s:,.0f} samples/s  {used}"
        f"ETA {format_duration(snapshot.eta_s)}"
    )


def format_bar(snapshot: Progression, width: int) -> str:
    """A line of at most ``width`` characters; the bar takes the space that is left."""
    line = format_line(snapshot)
    cells = min(BAR_CELLS, width - len(line) - len("  []"))
    if cells < LEAST_BAR_CELLS:
        return line[:width]
    done = cells * snapshot.step // snapshot.stop_step
    return f"{line}  [{'#' * done}{'.' * (cells - done)}]"


def format_duration(seconds: float) -> str:
    """[hours:]minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
