"""Beats, and the seats that the leader need not look at every time: those of nodes long gone. Pure.

A seat is never taken off the list: a node that was frozen may wake after hours and count on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

DORMANT_LIMITS = 6
"""Detection limits of silence after which the leader looks at a node outside only in turn."""
DORMANT_TURNS = 40
"""Pulses in which the leader has looked once at each of these."""


@dataclass(frozen=True)
class Beat:
    """The last text seen of a node, for how many watched seconds it has not changed, and whether
    it ever did: a first sight proves no life."""

    text: str
    silent_s: float = 0.0
    moved: bool = False


def turn_of(dormant: Iterable[str], pulse: int) -> tuple[str, ...]:
    """The dormant seats to look at in the pulse of this number."""
    return tuple(islice(dormant, pulse % DORMANT_TURNS, None, DORMANT_TURNS))


def sort_out_dormant(
    beats: Mapping[str, Beat],
    dormant: Mapping[str, Beat],
    members: Collection[str],
    limit_s: float,
) -> tuple[Mapping[str, Beat], Mapping[str, Beat]]:
    """The beats that count, and the dormant seats after a look: the same object if none changed.

    ``limit_s`` is the limit of silence for a lost node.
    """
    quiet = {
        seat: beat
        for seat, beat in beats.items()
        if beat.silent_s >= DORMANT_LIMITS * limit_s and seat not in members
    }
    if quiet:
        beats = {seat: beat for seat, beat in beats.items() if seat not in quiet}
    woken = beats.keys() & dormant.keys()
    if woken or not quiet.keys() <= dormant.keys():
        dormant = {s: beat for s, beat in {**dormant, **quiet}.items() if s not in woken}
    return beats, dormant
