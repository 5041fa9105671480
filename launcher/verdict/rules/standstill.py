"""What the stacks of all ranks say together when the ranks stand still. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.contract.causes import Cause
from launcher.contract.look import Frame, RankLook, tell_state
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, Meaning
from launcher.verdict.scan import LIBRARY, place_of

STANDS_S = 10.0
"""In a run that goes on, ranks may wait this long for a slow rank or a disk."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a rank's main thread stood; ``line`` has its rank, node and file.

    ``thread`` is the thread that a script waits for at its end, whose ``frames`` these are.
    """

    line: LogLine
    frames: tuple[Frame, ...]
    look: RankLook
    thread: str = ""


_KINDS = {
    "collective": re.compile(r"/torch/distributed/"),
    "data": re.compile(r"/torch/utils/data/"),
    "device": re.compile(r"/torch/(?:cuda|autograd|_tensor)|/torch/nn/parallel"),
    "thread": re.compile(r"/(?:threading|queue)\.py$"),
    "outside": re.compile(r"/(?:subprocess|selectors|socket|ssl|connection)\.py$"),
}
"""What a rank does, by the files of the calls that the user's code made; the first match."""


_BUSY_SHARE = 0.05
"""Of a core. A rank that used more before it was to be ended did not stand still."""
_OF_TWO = {"recv", "send", "recv_object_list", "send_object_list"}
"""Calls that wait for one other rank, not for all."""
_SLEEPS = "nanosleep"
"""In the kernel's function for a sleep."""
_OF_GPU = re.compile(r"^_?(?:nv|rm_|uvm|amdgpu|kfd)")
"""Functions of GPU drivers in the kernel."""


def judge_standing(standing: Sequence[Standing], *, stood: bool = False) -> Iterator[Meaning]:
    """Who keeps the others waiting: a rank outside of the collective that they are in.

    ``stood``: no rank was computing as they were to be ended, so that those outside of collectives
    may wait for something too.
    """
    places: dict[str, list[Standing]] = defaultdict(list)
    for one in standing:
        places["state" if one.look.state in ("D", "T") else _kind_of(one.frames)].append(one)
    waiting = [*places.pop("collective", ()), *places.pop("device", ())]
    if places and (waiting or stood or len(standing) == 1 or "state" in places):
        for kind, ranks in places.items():
            late = [one for one in ranks if waiting or not stood or _waits(one, kind)]
            yield from (_blame(one, kind, waiting) for one in late[:1])
    elif len({_name(one) for one in waiting}) > 1:
        odd = min(waiting, key=lambda one: sum(_name(other) == _name(one) for other in waiting))
        other = next(one for one in waiting if _name(one) != _name(odd))
        calls = {_name(one).partition(" ")[0] for one in waiting}
        cause = Cause.DEADLOCK if calls <= _OF_TWO else Cause.MISMATCHED_COLLECTIVE
        yield _find(cause, odd, f"rank {other.line.rank}: {_name(other)}")


def _waits(one: Standing, kind: str) -> bool:
    """Whether a rank that nobody waits for, and that is to be ended, waits for something itself.

    One that sleeps, or that has made no step and waits for a program or a peer, may do its work.
    """
    is_at_work = kind in ("code", "outside")
    return not is_at_work or (one.look.steps > 0 and _SLEEPS not in one.look.waits_in)


def _blame(one: Standing, kind: str, waiting: Sequence[Standing]) -> Meaning:
    cause = Cause.DEADLOCK
    if kind == "data" or one.look.state == "D":
        is_gpu = _OF_GPU.search(one.look.waits_in)
        cause = Cause.GPU_FAULT if is_gpu else Cause.DATA_STALL
    elif kind == "code" and one.look.state == "R":
        cause = Cause.ENDLESS_LOOP
    others = f"rank {waiting[0].line.rank}: {_name(waiting[0])}" if waiting else ""
    # More workers or another disk help where loading is slow, not where it stands.
    is_loader = kind == "data" and one.look.state != "D"
    fix = "num_workers=0 shows at which line of the dataset" if is_loader else ""
    return replace(_find(cause, one, others), fix=fix)


def _find(cause: Cause, one: Standing, others: str) -> Meaning:
    where, state = f"stands at {_name(one)}" if one.frames else "stands", tell_state(one.look)
    if one.thread:
        where = f"has ended but for its thread {one.thread}, which {where}"
    text = "; ".join(filter(None, (f"rank {one.line.rank} {where}", state, others)))
    is_now = one.look.state == "T" or (one.look.state == "D" and one.look.silent_s > STANDS_S)
    line = replace(one.line, text=text, frame=own_place(one.frames), joined=is_now)
    return Meaning(cause=cause, weight=LIKELY, line=line, rank=line.rank)


def computes(one: Standing) -> bool:
    """Whether a rank computed before it was to be ended, and did not just spin in a wait."""
    is_busy = one.look.cpu_share > _BUSY_SHARE
    return is_busy and _kind_of(one.frames) not in ("collective", "device")


def _kind_of(frames: Sequence[Frame]) -> str:
    if any(_KINDS["data"].search(frame.file) for frame in frames):
        return "data"  # also in the user's own dataset, which the loader has called
    called, _ = _split(frames)
    kinds = (k for k, files in _KINDS.items() if any(files.search(one.file) for one in called))
    return next(kinds, "code")


def _split(frames: Sequence[Frame]) -> tuple[Sequence[Frame], str]:
    """What the user's code has called, the newest first, and its own innermost line."""
    at = next((n for n, one in enumerate(frames) if not LIBRARY.search(one.file)), len(frames))
    own = [place_of(one.file, one.line) for one in frames[at : at + 1]]
    return frames[:at], "".join(own)


def own_place(frames: Sequence[Frame]) -> str:
    """The innermost line of the user's own code, such as ``train.py:12``; empty for none."""
    return _split(frames)[1]


def _name(one: Standing) -> str:
    """The last call that the user's code made, and where: ``all_reduce <- train.py:24``."""
    called, place = _split(one.frames)
    names = [frame.function for frame in called if not frame.function.endswith("wrapper")]
    return " <- ".join(filter(None, (*names[-1:], place)))
