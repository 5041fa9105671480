"""What the stacks of all ranks say together when the ranks stand still. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.contract.causes import Cause
from launcher.contract.reports.look import Frame, RankLook, describe_state
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


def judge_standing(standings: Sequence[Standing], *, stood: bool = False) -> Iterator[Meaning]:
    """Who keeps the others waiting: a rank outside of the collective that they are in.

    ``stood``: no rank was computing as they were to be ended, so that those outside of collectives
    may wait for something too.
    """
    places: dict[str, list[Standing]] = defaultdict(list)
    for standing in standings:
        places["state" if standing.look.state in ("D", "T") else _kind_of(standing.frames)].append(
            standing
        )
    waiting = [*places.pop("collective", ()), *places.pop("device", ())]
    if places and (waiting or stood or len(standings) == 1 or "state" in places):
        for kind, ranks in places.items():
            late = [
                standing for standing in ranks if waiting or not stood or _waits(standing, kind)
            ]
            yield from (_blame(standing, kind, waiting) for standing in late[:1])
    elif len({_name_call(standing) for standing in waiting}) > 1:
        odd = min(
            waiting,
            key=lambda standing: sum(
                _name_call(other) == _name_call(standing) for other in waiting
            ),
        )
        other = next(standing for standing in waiting if _name_call(standing) != _name_call(odd))
        calls = {_name_call(standing).partition(" ")[0] for standing in waiting}
        cause = Cause.DEADLOCK if calls <= _OF_TWO else Cause.MISMATCHED_COLLECTIVE
        yield _make_meaning(cause, odd, f"rank {other.line.rank}: {_name_call(other)}")


def _waits(standing: Standing, kind: str) -> bool:
    """Whether a rank that nobody waits for, and that is to be ended, waits for something itself.

    One that sleeps, or that has made no step and waits for a program or a peer, may do its work.
    """
    is_at_work = kind in ("code", "outside")
    return not is_at_work or (standing.look.steps > 0 and _SLEEPS not in standing.look.waits_in)


def _blame(standing: Standing, kind: str, waiting: Sequence[Standing]) -> Meaning:
    cause = Cause.DEADLOCK
    if kind == "data" or standing.look.state == "D":
        is_gpu = _OF_GPU.search(standing.look.waits_in)
        cause = Cause.GPU_FAULT if is_gpu else Cause.DATA_STALL
    elif kind == "code" and standing.look.state == "R":
        cause = Cause.ENDLESS_LOOP
    others = f"rank {waiting[0].line.rank}: {_name_call(waiting[0])}" if waiting else ""
    # More workers or another disk help where loading is slow, not where it stands.
    is_loader = kind == "data" and standing.look.state != "D"
    fix = "num_workers=0 shows at which line of the dataset" if is_loader else ""
    return replace(_make_meaning(cause, standing, others), fix=fix)


def _make_meaning(cause: Cause, standing: Standing, others: str) -> Meaning:
    where, state = (
        f"stands at {_name_call(standing)}" if standing.frames else "stands",
        describe_state(standing.look),
    )
    if standing.thread:
        where = f"has ended but for its thread {standing.thread}, which {where}"
    text = "; ".join(filter(None, (f"rank {standing.line.rank} {where}", state, others)))
    is_now = standing.look.state == "T" or (
        standing.look.state == "D" and standing.look.silent_s > STANDS_S
    )
    line = replace(standing.line, text=text, frame=own_place(standing.frames), joined=is_now)
    return Meaning(cause=cause, weight=LIKELY, line=line, rank=line.rank)


def computes(standing: Standing) -> bool:
    """Whether a rank computed before it was to be ended, and did not just spin in a wait."""
    is_busy = standing.look.cpu_share > _BUSY_SHARE
    return is_busy and _kind_of(standing.frames) not in ("collective", "device")


def _kind_of(frames: Sequence[Frame]) -> str:
    if any(_KINDS["data"].search(frame.file) for frame in frames):
        return "data"  # also in the user's own dataset, which the loader has called
    called, _ = _split(frames)
    kinds = (k for k, files in _KINDS.items() if any(files.search(call.file) for call in called))
    return next(kinds, "code")


def _split(frames: Sequence[Frame]) -> tuple[Sequence[Frame], str]:
    """What the user's code has called, the newest first, and its own innermost line."""
    at = next((n for n, frame in enumerate(frames) if not LIBRARY.search(frame.file)), len(frames))
    own_line = [place_of(frame.file, frame.line) for frame in frames[at : at + 1]]
    return frames[:at], "".join(own_line)


def own_place(frames: Sequence[Frame]) -> str:
    """The innermost line of the user's own code, such as ``train.py:12``; empty for none."""
    return _split(frames)[1]


def _name_call(standing: Standing) -> str:
    """The last call that the user's code made, and where: ``all_reduce <- train.py:24``."""
    called, place = _split(standing.frames)
    names = [frame.function for frame in called if not frame.function.endswith("wrapper")]
    return " <- ".join(filter(None, (*names[-1:], place)))
