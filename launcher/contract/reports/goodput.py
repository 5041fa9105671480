"""Sorts the seconds of a training into classes (productive, rework, save stall, ...), event by
event. Standard library only; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLASSES = (
    *("productive", "first step", "load", "save stall", "rework"),
    *("healing", "starting", "finish", "idle"),
)
"""productive: steps made for the first time. first step: the first step of a start, which compiles
and warms up. load: imports, data, model, resuming. save stall: waiting for a checkpoint. rework:
steps that an earlier start made and lost. healing: from the last step among some nodes to the end
of the first step among others, in the same processes. starting: agents run but no training does.
finish: after the last step. idle: what no ledger accounts for."""

_AFTER = {
    "train-started": "load",
    "loaded": "first step",
    "first-step": "training",
    "progress": "training",
    "trained": "finish",
    "train-ended": "finish",
}
"""The phase that each event begins; it lasts until the next event of this table."""


class Tally:
    """Adds up ``seconds`` by class, and ``lost_steps``, which had to be made again.

    ``since`` is when the first agent began; times are in seconds since the epoch.
    """

    def __init__(self, since: float) -> None:
        self.seconds = dict.fromkeys(CLASSES, 0.0)
        self.lost_steps = 0
        self._last_at = since
        self._before, self._before_at = "", 0.0
        self._step = self._highest = self._reached = 0
        self._heals, self._step_s = False, 0.0

    def begin(self, at: float) -> None:
        """Notes that the training was started, which ends the start before."""
        self.seconds["starting"] += max(0.0, at - self._last_at)
        self._before, self._before_at, self._last_at = "train-started", at, at
        self._heals = False
        self._step, self._reached = 0, self._highest

    def heal(self) -> None:
        """Notes that the training goes on in another group of nodes, with the state it had."""
        self._heals, self._reached = True, self._highest

    def add(self, name: str, at: float, values: Mapping[str, Any]) -> None:
        """Adds an event of the present start; events have to be added in order of time."""
        if name not in _AFTER:
            return
        phase, spent_s = _AFTER[self._before], max(0.0, at - self._before_at)
        step, next_step = self._step, int(values.get("step") or self._step)
        if phase != "training":
            is_healing = self._heals and phase == "first step"
            self.seconds["healing" if is_healing else phase] += spent_s
        elif self._heals:
            # Steps that were made since the last event, before the group was left.
            made_s = min(spent_s, max(0, next_step - step) * self._step_s)
            self.seconds["productive"] += made_s
            self.seconds["healing"] += spent_s - made_s
        else:
            stall_s = min(spent_s, float(values.get("save_stall_s") or 0.0))
            again = _share(step, next_step, self._reached)
            self.seconds["save stall"] += stall_s
            self.seconds["rework"] += (spent_s - stall_s) * again
            self.seconds["productive"] += (spent_s - stall_s) * (1 - again)
            self._step_s = (spent_s - stall_s) / max(1, next_step - step)
        if name != "loaded":
            self._heals = False
            self.lost_steps += max(0, min(next_step, self._reached) - step)
        self._before, self._before_at, self._last_at = name, at, max(at, self._last_at)
        self._step, self._highest = next_step, max(self._highest, next_step)


def _share(step: int, next_step: int, reached: int) -> float:
    """The share of the steps after ``step`` that had been made before."""
    made = next_step - step
    return (min(next_step, reached) - step) / made if made > 0 and step < reached else 0.0
