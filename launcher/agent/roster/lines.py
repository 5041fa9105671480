"""To whom a node keeps a connection that tells of that node's end. Pure."""

from __future__ import annotations

from launcher.agent.roster import membership as heads
from launcher.agent.roster.settings import WATCHED
from launcher.agent.roster.view import State, plan_watched


def plan_lines(state: State) -> tuple[heads.Member, ...] | None:
    """The members to be connected with; ``None`` while the members of a new round are not known.

    Each node watches its successors and the leader watches all, so that several nodes that end at
    once are noticed at once. These are O(N) connections.
    """
    head = state.head
    if head is None or head.phase is heads.Phase.CLOSED:
        return ()
    if not head.members:
        return _missing_since_before(state)
    if head.members != state.ring_key:
        return None
    if not (state.leads or state.belongs):
        return ()
    away = {*head.gone, *head.finished} - {head.leader}
    seats, at = state.members, state.ring.ranks.get(state.seat)
    if at is not None:
        width = len(seats) if state.leads else WATCHED
        seats = plan_watched(seats, at, away, frozenset(), width)
    by_seat = {member.seat: member for member in state.ring}
    return tuple(by_seat[seat] for seat in seats if seat not in away)


def _missing_since_before(state: State) -> tuple[heads.Member, ...]:
    """Around a new store its leader asks who of the last group can still come."""
    if not state.leads:
        return ()
    return tuple(m for m in state.before if heads.index_of(m.seat) != state.index)
