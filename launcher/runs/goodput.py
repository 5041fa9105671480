"""How a run spent its time, from the training's ledger and the agents'. Pure.

Each instant from submission to end belongs to one class; the classes add up to the wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from launcher.runs.ledger import LedgerEvent

CLASSES = ("productive", "first step", "load", "save stall", "rework", "starting", "finish", "idle")
"""productive: steps made for the first time. first step: the first step of a start, which compiles
and warms up. load: imports, data, model, resuming. save stall: waiting for a checkpoint. rework:
steps that an earlier start made and lost. starting: agents run but no training does. finish: after
the last step. idle: what no ledger accounts for."""

_AFTER = {
    "train-started": "load",
    "loaded": "first step",
    "first-step": "training",
    "progress": "training",
    "trained": "finish",
    "train-ended": "finish",
}
"""The phase that each event begins; it lasts until the next event of this table."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds by class over ``wall_s``; ``share`` is the productive part of it, 0 to 1.

    ``world``: (seconds since submission, workers), 0 where no training ran. ``loss``: (seconds,
    step, loss). ``failures``: seconds at which a start of the training was lost. ``lost_steps``:
    steps made again because no checkpoint held them. ``until``: the last step, 0 where the training
    does not tell.
    """

    wall_s: float
    seconds: Mapping[str, float]
    starts: int
    lost_steps: int
    world: Sequence[tuple[float, int]]
    loss: Sequence[tuple[float, int, float]]
    failures: Sequence[float]
    until: int = 0

    @property
    def share(self) -> float:
        return self.seconds["productive"] / self.wall_s if self.wall_s > 0 else 0.0

    def to_jsonable(self) -> Mapping[str, object]:
        """Plain data, rounded."""
        rounded = {name: round(spent_s, 3) for name, spent_s in self.seconds.items()}
        return {**asdict(self), "seconds": rounded, "share": round(self.share, 4)}


@dataclass(frozen=True, kw_only=True)
class _Start:
    """One start of the training, cut where the next one begins; times are epoch seconds."""

    events: Sequence[LedgerEvent]
    until: float

    @property
    def began_at(self) -> float:
        return self.events[0].at

    @property
    def ended(self) -> bool:
        return any(event.name == "train-ended" for event in self.events)

    @property
    def ended_at(self) -> float:
        return max(self.began_at, min(self.events[-1].at, self.until))

    def world(self, submitted_at: float) -> Iterator[tuple[float, int]]:
        size = int(self.events[0].values.get("world_size") or 0)
        yield round(self.began_at - submitted_at, 3), size
        yield round(self.ended_at - submitted_at, 3), 0

    def losses(self, submitted_at: float) -> Iterator[tuple[float, int, float]]:
        for event in self.events:
            loss = event.values.get("loss")
            if event.name in ("progress", "trained") and loss is not None:
                yield round(event.at - submitted_at, 3), int(event.values["step"]), float(loss)


def measure_goodput(
    train: Iterable[LedgerEvent],
    agents: Iterable[LedgerEvent],
    submitted_at: float,
    finished_at: float,
) -> Goodput | None:
    """None where the training wrote no ledger; ``finished_at`` is now for a run that goes on."""
    starts = _split_starts(train, finished_at)
    if not starts:
        return None
    wall_s = max(0.0, finished_at - submitted_at)
    seconds = dict.fromkeys(CLASSES, 0.0)
    reached = lost_steps = 0
    for start in starts:
        reached, lost = _add_start(start, seconds, reached)
        lost_steps += lost
    gaps_s = wall_s - sum(seconds.values())
    seconds["starting"] = min(max(0.0, gaps_s), _measure_starting(starts, agents, submitted_at))
    seconds["idle"] = wall_s - sum(seconds.values())
    return Goodput(
        wall_s=round(wall_s, 3),
        seconds=seconds,
        starts=len(starts),
        lost_steps=lost_steps,
        world=((0.0, 0), *(point for start in starts for point in start.world(submitted_at))),
        loss=tuple(point for start in starts for point in start.losses(submitted_at)),
        until=next(
            (
                int(event.values["until"])
                for event in reversed(starts[-1].events)
                if event.name == "planned"
            ),
            0,
        ),
        failures=tuple(
            round(start.ended_at - submitted_at, 3) for start in starts[:-1] if not start.ended
        ),
    )


def _split_starts(train: Iterable[LedgerEvent], finished_at: float) -> list[_Start]:
    """A start's events share node, incarnation and attempt; the job has one start at a time."""
    found: list[list[LedgerEvent]] = []
    last: dict[tuple[object, ...], list[LedgerEvent]] = {}
    for event in sorted(train, key=lambda each: each.at):
        key = (event.node_index, event.incarnation, event.values.get("attempt"))
        if event.name == "train-started":
            last[key] = [event]
            found.append(last[key])
        elif key in last:
            last[key].append(event)
    begins = [events[0].at for events in found[1:]] + [finished_at]
    return [
        _Start(events=events, until=min(until, finished_at))
        for events, until in zip(found, begins, strict=False)
    ]


def _add_start(start: _Start, seconds: dict[str, float], reached: int) -> tuple[int, int]:
    """Adds one start's seconds; gives the highest step so far, and how many were made again."""
    step = lost = 0
    highest = reached
    marks = [event for event in start.events if event.name in _AFTER]
    for before, event in pairwise(marks):
        phase = _AFTER[before.name]
        spent_s = max(0.0, min(event.at, start.until) - min(before.at, start.until))
        next_step = int(event.values.get("step") or step)
        if phase != "training":
            seconds[phase] += spent_s
        else:
            stall_s = min(spent_s, float(event.values.get("save_stall_s") or 0.0))
            again = _share(step, next_step, reached)
            seconds["save stall"] += stall_s
            seconds["rework"] += (spent_s - stall_s) * again
            seconds["productive"] += (spent_s - stall_s) * (1 - again)
        if event.name != "loaded":
            lost += max(0, min(next_step, reached) - step)
        step, highest = next_step, max(highest, next_step)
    return highest, lost


def _share(step: int, next_step: int, reached: int) -> float:
    """The share of the steps after ``step`` that had been made before."""
    made = next_step - step
    return (min(next_step, reached) - step) / made if made > 0 and step < reached else 0.0


def _measure_starting(
    starts: Sequence[_Start], agents: Iterable[LedgerEvent], submitted_at: float
) -> float:
    """Seconds before and between starts in which some agent was there."""
    times = sorted(event.at for event in agents)
    total, since = 0.0, submitted_at
    for start in starts:
        first = next((at for at in times if since <= at <= start.began_at), None)
        if first is not None:
            total += start.began_at - (first if since == submitted_at else since)
        since = start.ended_at
    return total
