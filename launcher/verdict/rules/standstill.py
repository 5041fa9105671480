"""What the stacks of all ranks say together where they stand still. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.contract.look import Frame
from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, Meaning
from launcher.verdict.scan import LIBRARY, LogLine, place_of


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a rank's main thread stood; ``line`` has its rank, node and file.

    ``is_busy``: it used a core meanwhile.
    """

    line: LogLine
    frames: tuple[Frame, ...]
    is_busy: bool


_KINDS = {
    "collective": re.compile(r"/torch/distributed/"),
    "data": re.compile(r"/torch/utils/data/"),
    "device": re.compile(r"/torch/(?:cuda|autograd|_tensor)|/torch/nn/parallel"),
    "wait": re.compile(r"/(?:threading|queue|subprocess|selectors|socket|ssl|connection)\.py$"),
}
"""By the files of the calls between the user's code and the newest call; the first that fits."""


def judge_standing(standing: Sequence[Standing]) -> Iterator[Meaning]:
    """Who keeps the others waiting: a rank outside of the collective that they are in."""
    places: dict[str, list[Standing]] = defaultdict(list)
    for one in standing:
        places[_kind_of(one.frames)].append(one)
    waiting = [*places.pop("collective", ()), *places.pop("device", ())]
    if places and (waiting or len(standing) == 1):
        for kind, ranks in places.items():
            yield _blame(ranks[0], kind, waiting)
    elif len({_name(one) for one in waiting}) > 1:
        odd = min(waiting, key=lambda one: sum(_name(other) == _name(one) for other in waiting))
        other = next(one for one in waiting if _name(one) != _name(odd))
        yield _find(
            FailureCause.MISMATCHED_COLLECTIVE, odd, f"rank {other.line.rank}: {_name(other)}"
        )


def _blame(one: Standing, kind: str, waiting: Sequence[Standing]) -> Meaning:
    cause = {"data": FailureCause.DATA_STALL, "wait": FailureCause.DEADLOCK}.get(kind)
    if cause is None:
        cause = FailureCause.ENDLESS_LOOP if one.is_busy else FailureCause.DEADLOCK
    others = f"rank {waiting[0].line.rank}: {_name(waiting[0])}" if waiting else ""
    return _find(cause, one, others)


def _find(cause: FailureCause, one: Standing, others: str) -> Meaning:
    text = "; ".join(filter(None, (f"rank {one.line.rank} stands at {_name(one)}", others)))
    line = replace(one.line, text=text, frame=_own(one.frames))
    return Meaning(cause=cause, weight=LIKELY, line=line, rank=line.rank)


def _kind_of(frames: Sequence[Frame]) -> str:
    if any(_KINDS["data"].search(frame.file) for frame in frames):
        return "data"  # also in the user's own dataset, which the loader has called
    above = []
    for frame in frames:
        if not LIBRARY.search(frame.file):
            break
        above.append(frame.file)
    kinds = (k for k, files in _KINDS.items() if any(map(files.search, above)))
    return next(kinds, "code")


def _own(frames: Sequence[Frame]) -> str:
    own = (f for f in frames if not LIBRARY.search(f.file))
    return next((place_of(frame.file, frame.line) for frame in own), "")


def _name(one: Standing) -> str:
    """The last call that the user's code made, and where: ``all_reduce <- train.py:24``."""
    called = ""
    for frame in one.frames:
        if not LIBRARY.search(frame.file):
            place = place_of(frame.file, frame.line)
            return f"{called} <- {place}" if called else place
        called = called if frame.function.endswith("wrapper") else frame.function
    return called
