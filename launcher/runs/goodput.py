"""Goodput: how a run spent its time, which share made steps, and how many steps were made again;
from the training's ledger and the agents'. Pure.

Each instant from submission to end belongs to one class; the classes add up to the wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import NamedTuple

from launcher.contract.reports.goodput import Tally
from launcher.runs.ledger import LedgerEvent


class Point(NamedTuple):
    """What the training reported after ``step`` steps, ``after_s`` seconds after the submission.

    ``samples`` are those of all ranks in this run that led to ``step``, without what was lost.
    """

    after_s: float
    step: int
    samples: int
    loss: float | None
    lr: float | None
    samples_per_s: float | None
    workers: int


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds by class over ``wall_s``; ``share`` is the productive part of it, 0 to 1.

    ``starts``: without those that healed. ``world``: (seconds since submission, workers), 0 while
    no training ran. ``points``: in order of time. ``saves``: seconds and node of each checkpoint.
    ``failures``: seconds at which a start of the training was lost. ``lost_steps``: steps made
    again because no checkpoint held them. ``until``: the last planned step, 0 if the training does
    not report it.
    """

    wall_s: float
    seconds: Mapping[str, float]
    starts: int
    lost_steps: int
    world: Sequence[tuple[float, int]]
    points: Sequence[Point]
    failures: Sequence[float]
    saves: Sequence[tuple[float, int]] = ()
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
    """The training in one group of nodes, cut where the next one begins; times are epoch seconds.

    ``heals``: it went on from the last one in the same processes, and is no start. ``goes_on``:
    the next one heals.
    """

    events: Sequence[LedgerEvent]
    until: float
    heals: bool
    goes_on: bool

    @property
    def began_at(self) -> float:
        return self.events[0].at

    @property
    def ended(self) -> bool:
        return any(event.name == "train-ended" for event in self.events)

    @property
    def ended_at(self) -> float:
        return max(self.began_at, min(self.events[-1].at, self.until))

    @property
    def workers(self) -> int:
        return int(self.events[0].values.get("world_size") or 0)

    def world(self, submitted_at: float) -> Iterator[tuple[float, int]]:
        yield round(self.began_at - submitted_at, 3), self.workers
        if not self.goes_on:
            yield round(self.ended_at - submitted_at, 3), 0


def _tell_points(starts: Iterable[_Start], submitted_at: float) -> Iterator[Point]:
    samples_at, writer = {0: 0.0}, None  # by step, the samples that led to it
    since = uncounted = 0  # the last step of a point; how many steps after it no line counts
    for start in starts:
        earlier, writer = writer, _writer(start.events[0])
        step, at = 0, start.began_at
        if not start.heals:
            since = uncounted = 0
        for event in start.events:
            if event.name in ("loaded", "first-step"):
                step, at = int(event.values.get("step") or 0), event.at
            if event.name == "loaded" and not start.heals:
                since, uncounted = step, 0
                known = max((step for step in samples_at if step <= since), default=0)
                samples_at[since] = samples_at[known]
            if event.name == "first-step":
                # A start's lines leave out its first step; those of a new writer all before it.
                uncounted = uncounted + 1 if writer == earlier and start.heals else step - since
            if event.name not in ("progress", "trained"):
                continue
            new_step, samples = int(event.values["step"]), event.values.get("samples") or 0
            counted = new_step - since - uncounted
            batch = samples / counted if counted > 0 else 0
            spent_s = event.at - at
            new_samples = batch * (new_step - since) if batch else samples
            samples_at[new_step] = samples_at.get(since, 0) + new_samples
            made = batch * (new_step - step) if batch else samples
            yield Point(
                after_s=round(event.at - submitted_at, 3),
                step=new_step,
                samples=round(samples_at[new_step]),
                loss=event.values.get("loss"),
                lr=event.values.get("lr"),
                samples_per_s=round(made / spent_s, 2) if spent_s > 0 else None,
                workers=start.workers,
            )
            step, since, uncounted, at = new_step, new_step, 0, event.at


def measure_goodput(
    train: Iterable[LedgerEvent],
    agents: Iterable[LedgerEvent],
    submitted_at: float,
    finished_at: float,
) -> Goodput | None:
    """None if the training wrote no ledger; ``finished_at`` is now for a run that goes on."""
    starts = _split_starts(filter(_is_sound, train), finished_at)
    if not starts:
        return None
    wall_s = max(0.0, finished_at - submitted_at)
    tally = Tally(starts[0].began_at)
    for start in starts:
        tally.heal() if start.heals else tally.begin(start.began_at)
        for event in start.events[1:]:
            tally.add(event.name, min(event.at, start.until), event.values)
    last = starts[-1].events
    planned = [event.values["until"] for event in last if event.name == "planned"]
    # The tally does not know what agents did between the starts.
    seconds = {**tally.seconds, "starting": 0.0}
    gaps_s = wall_s - sum(seconds.values())
    seconds["starting"] = min(max(0.0, gaps_s), _measure_starting(starts, agents, submitted_at))
    seconds["idle"] = wall_s - sum(seconds.values())
    return Goodput(
        wall_s=round(wall_s, 3),
        seconds=seconds,
        starts=sum(not start.heals for start in starts),
        lost_steps=tally.lost_steps,
        world=((0.0, 0), *(point for start in starts for point in start.world(submitted_at))),
        points=tuple(_tell_points(starts, submitted_at)),
        saves=tuple(
            (round(event.at - submitted_at, 3), event.node_index)
            for start in starts
            for event in start.events
            if event.name == "saved"
        ),
        until=int(planned[-1]) if planned else 0,
        failures=tuple(
            round(start.ended_at - submitted_at, 3)
            for start in starts[:-1]
            if not start.ended and not start.goes_on
        ),
    )


_NUMBERS = ("step", "until", "world_size", "loss", "lr", "samples", "save_stall_s")


def _is_sound(event: LedgerEvent) -> bool:
    """Whether an event, whatever wrote it, has numbers where they belong."""
    values = [event.values.get(name) for name in _NUMBERS]
    has_step = event.name not in ("progress", "trained") or values[0] is not None
    numbers = [value for value in values if value is not None]
    return has_step and all(isinstance(n, int | float) and isfinite(n) for n in numbers)


def _writer(event: LedgerEvent) -> tuple[object, ...]:
    return event.node_index, event.incarnation, event.values.get("attempt")


def _split_starts(train: Iterable[LedgerEvent], finished_at: float) -> list[_Start]:
    """The events of a start have one writer; the job has one start at a time."""
    starts: list[list[LedgerEvent]] = []
    last: dict[tuple[object, ...], list[LedgerEvent]] = {}
    for event in sorted(train, key=lambda each: each.at):
        if event.name == "train-started":
            last[_writer(event)] = [event]
            starts.append(last[_writer(event)])
        elif _writer(event) in last:
            last[_writer(event)].append(event)
    begins = [events[0].at for events in starts[1:]] + [finished_at]
    # The ledger of whoever wrote before may be lost.
    heals = [n > 0 and bool(events[0].values.get("heals")) for n, events in enumerate(starts)]
    heals.append(False)
    return [
        _Start(
            events=events,
            until=min(begins[n], finished_at),
            heals=heals[n],
            goes_on=heals[n + 1],
        )
        for n, events in enumerate(starts)
    ]


def _measure_starting(
    starts: Sequence[_Start], agents: Iterable[LedgerEvent], submitted_at: float
) -> float:
    """Seconds before and between starts in which some agent was there."""
    times = sorted(event.at for event in agents)
    total, since = 0.0, submitted_at
    for start in starts:
        first = next((at for at in times if since <= at <= start.began_at), None)
        if first is not None and not start.heals:
            total += start.began_at - (first if since == submitted_at else since)
        since = start.ended_at
    return total
