"""Which nodes a node watches, and when silence means loss. Pure, on the watcher's monotonic clock.

A node's beat is a text that changes with each of its pulses. Silence counts only while the watcher
itself looks regularly: one that slept, starved or hung on a frozen store has learned nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SUSPECT_INTERVALS = 2
"""Pulses without a change after which a watcher also looks at the nodes behind the silent one."""


@dataclass(frozen=True)
class Beat:
    """The last text seen of a node, for how many watched seconds it has not changed, and whether
    it ever did: a first sight proves no life."""

    text: str
    silent_s: float = 0.0
    moved: bool = False


def listen(
    known: Mapping[str, Beat], heard: Mapping[str, str], elapsed_s: float
) -> dict[str, Beat]:
    """The beats after a look; nodes that were not looked at are forgotten.

    ``elapsed_s`` is the watched time since the look before.
    """
    result = {}
    for seat, text in heard.items():
        old = known.get(seat)
        if old is None:
            result[seat] = Beat(text)
        elif old.text == text:
            result[seat] = Beat(text, old.silent_s + elapsed_s, old.moved)
        else:
            result[seat] = Beat(text, 0.0, moved=True)
    return result


def silent(beats: Mapping[str, Beat], limit_s: float) -> frozenset[str]:
    """Seats whose beat has not changed for ``limit_s``."""
    return frozenset(seat for seat, beat in beats.items() if beat.silent_s >= limit_s)


def plan_watched(
    ring: tuple[str, ...], me: str, gone: Iterable[str], suspects: frozenset[str], width: int
) -> tuple[str, ...]:
    """The seats that ``me`` watches: its next ``width`` successors in ``ring``.

    While all of these are suspects the window doubles, so that a whole rack that goes dark is
    noticed by the node before it.
    """
    if me not in ring:
        return ()
    struck = set(gone)
    at = ring.index(me)
    behind = tuple(seat for seat in ring[at + 1 :] + ring[:at] if seat not in struck)
    while width < len(behind) and suspects.issuperset(behind[:width]):
        width *= 2
    return behind[:width]
