"""The stacks of all ranks in a few groups: ranks at the same place form one group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from launcher.contract.reports.look import Frame, RankStacks
from launcher.verdict.scan import LIBRARY

MOST_CALLS = 6
"""Calls in a group's first line; the stack follows it."""
MOST_SHOWN = 20
"""Calls of a stack below that line."""
MOST_LIBRARY_CALLS = 2
"""Library calls in that line, the newest included."""
_WRAPPERS = ("c10d_logger.py",)
"""Files of torch that only wrap its calls."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Threads of these ranks that have the same stack; the newest call is first."""

    ranks: tuple[int, ...]
    name: str
    is_main: bool
    frames: tuple[Frame, ...]


def merge_stacks(of_ranks: Iterable[RankStacks], *, all_threads: bool = False) -> tuple[Group, ...]:
    """Groups of main threads, the largest first, and with ``all_threads`` then the others."""
    members: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], Group] = {}
    for stacks in of_ranks:
        for thread in stacks.threads:
            if not (thread.is_main or all_threads):
                continue
            calls = tuple((f.function, PurePosixPath(f.file).name, f.line) for f in thread.frames)
            key = (thread.is_main, thread.name if not thread.is_main else "", calls)
            members.setdefault(key, []).append(stacks.rank)
            group = Group(ranks=(), name=thread.name, is_main=thread.is_main, frames=thread.frames)
            first.setdefault(key, group)
    groups = [
        replace(first[key], ranks=tuple(sorted(set(ranks)))) for key, ranks in members.items()
    ]
    return tuple(sorted(groups, key=lambda g: (not g.is_main, -len(g.ranks), g.ranks, g.name)))


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks in words: ``rank 3``, or ``ranks 0-2, 5``."""
    left = sorted(set(ranks))
    parts: list[str] = []
    while left:
        run = [rank for at, rank in enumerate(left) if rank == left[0] + at]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
        left = left[len(run) :]
    few = len(parts) == 1 and "-" not in parts[0]
    return f"rank{'' if few else 's'} {', '.join(parts)}"


def shorten(frames: Sequence[Frame]) -> str:
    """Where a thread stands, such as ``all_reduce <- train.py:88``."""
    if not frames:
        return "no Python frames"
    shown: list[str] = []
    in_library = 0
    for at, frame in enumerate(frames):
        file = PurePosixPath(frame.file).name
        if LIBRARY.search(frame.file):
            in_library += 1
            # The line begins with the newest call's name.
            if at == 0 or file in _WRAPPERS or in_library > MOST_LIBRARY_CALLS:
                continue
        shown.append(f"{file}:{frame.line}" if frame.line else frame.function)
    return " <- ".join([frames[0].function, *shown[:MOST_CALLS]])


def render_group(group: Group) -> str:
    """One line, and below it the stack's newest calls."""
    thread = "" if group.is_main else f", thread {group.name or '(no name)'}"
    line = f"{name_ranks(group.ranks)}{thread}: {shorten(group.frames)}"
    shown = group.frames[:MOST_SHOWN]
    calls = [f"    {frame.file}:{frame.line} {frame.function}" for frame in shown]
    if left := len(group.frames) - len(shown):
        calls.append(f"    and {left} more")
    return "\n".join((line, *calls))
