"""Pure rules over one node's ``State``: what the head should become, and whom the node watches.

Any node may strike off a silent or leaving member, or re-open a round that broke. Only the leader
admits nodes and seals rounds. A change that comes too late fails without effect.
"""

from __future__ import annotations

from dataclasses import replace

from launcher.agent.roster import membership as heads
from launcher.agent.roster.membership import Cause, Head, Phase, index_of
from launcher.agent.roster.settings import WATCHED
from launcher.agent.roster.view import State, lost, may_form, plan_watched, status_in

COMING_INTERVALS = 4
"""How many pulses a later round waits for newcomers that are on their way."""


def decide_change(state: State, now: float) -> Head | None:
    """The head to propose, except to seal a round; ``None`` if nothing has to change."""
    head = state.known_head
    if head.phase is Phase.CLOSED:
        worse = head.closed == heads.FINISHED and state.closing not in ("", heads.FINISHED)
        return heads.close(head, state.closing) if worse else None
    if state.closing:
        return heads.close(head, state.closing)
    if finished := _with_the_finished(state, head, now):
        return finished
    if state.leaving:
        return _without_me(state, head)
    return (
        _without_the_lost(state, head)
        or _without_the_replaced(state, head)
        or (_reopened(state, head, now) if head.phase is Phase.SEALED else None)
        or (_handed_over(state, head, now) if head.phase is Phase.FORMING else None)
    )


# -- who has finished --------------------------------------------------------------------------
def _with_the_finished(state: State, head: Head, now: float) -> Head | None:
    """The leader records finished nodes. Any node closes a run in which no node can work on."""
    known = {*head.finished}
    new = tuple(s for s in state.finished_seats if s not in known) if state.leads else ()
    if new:
        head = head.next(finished=(*head.finished, *new))
        state = replace(state, head=head)
    end = _end_of(state, head, now)
    return heads.close(head, end) if end else head if new else None


def _end_of(state: State, head: Head, now: float) -> str:
    """Why no further round can or need be formed; empty where one may."""
    if not head.finished and not state.rules.finished_before:
        return ""
    working = state.unfinished
    finished = frozenset(head.finished)
    lost = [s for s in state.members if s in head.gone and s not in finished]
    if head.members and not working and (not lost or len(head.finished) >= state.rules.min_nodes):
        return heads.FINISHED
    if head.phase is not Phase.FORMING:
        return ""
    nobody_comes = not working and now - state.phase_at >= state.rules.join_timeout_s
    return heads.STRANDED if nobody_comes or not may_form(state) else ""


# -- who is gone -------------------------------------------------------------------------------
def _without_me(state: State, head: Head) -> Head | None:
    heir = _heir(state, head) if state.leads else head.leader
    if state.belongs and not state.has_finished:
        return heads.strike(head, {state.seat: Cause.LEFT}, heir or head.leader)
    return head.next(leader=heir) if state.leads and heir else None


def _heir(state: State, head: Head) -> str | None:
    """The next leader: a living member that works, else a node that waits, else one that lives."""
    quiet = lost(state)
    others = [s for s in (*state.unfinished, *arrived(state), *state.members) if s != state.seat]
    return next((s for s in others if s not in head.gone and s not in quiet), None)


def _without_the_lost(state: State, head: Head) -> Head | None:
    quiet = lost(state)
    struck = {s: Cause.LOST for s in state.unfinished if s in quiet} if quiet else {}
    if not (state.belongs or state.waiting or state.has_finished):
        return None
    orphaned = head.leader in quiet
    if struck:
        return heads.strike(head, struck, state.seat if orphaned else head.leader)
    return head.next(leader=state.seat) if orphaned else None


def _without_the_replaced(state: State, head: Head) -> Head | None:
    if not state.leads:
        return None
    old = tuple(s for s in replaced(state) if s not in head.gone)
    members = {s: Cause.REPLACED for s in old if s in state.ring.ranks}
    if members:
        heir = _heir(state, head) if state.seat in members else state.seat
        return heads.strike(head, members, heir or state.seat)
    if old:
        # They are outside of the membership: no round opens.
        return head.next(gone={**head.gone, **dict.fromkeys(old, heads.REPLACED)})
    return None


def replaced(state: State) -> tuple[str, ...]:
    """Seats whose node index was taken by a node that came later and waits now."""
    present = {*state.members, *waiters(state), *arrived(state)}
    newest: dict[int, str] = {}
    for seat in state.seats:
        if seat in present:
            newest[index_of(seat)] = seat
    finished = frozenset(state.known_head.finished)
    superseded = (s for s in state.seats if s in present and newest[index_of(s)] != s)
    return tuple(s for s in superseded if s not in finished)


# -- a sealed round that has to open again -------------------------------------------------------
def _reopened(state: State, head: Head, now: float) -> Head | None:
    if state.belongs and state.waiting and state.entered == head.epoch:
        return heads.open_round(head, Cause.FAULT)
    if state.fenced_out and not state.fenced_out.foreign and state.leads:
        return heads.open_round(head, Cause.FENCED)
    if state.belongs and head.newcomers and _may_admit(state, head, now):
        return heads.open_round(head, Cause.JOINED)
    if state.leads:
        # Once a member has finished, the others are near their end too and are not restarted.
        ending = not frozenset(head.finished).isdisjoint(state.members)
        # Announced only when calm: for newcomers the training has to commit and end.
        calm = head.newcomers or now - state.grown_at >= state.rules.growth_pause_s
        most = min(_room(state) - head.nodes, len(waiters(state)))
        newcomers = most if calm and not ending else 0
        return head.next(newcomers=newcomers) if newcomers != head.newcomers else None
    return None


def _may_admit(state: State, head: Head, now: float) -> bool:
    """Whether newcomers may come in, together: the group allows it, or has had its time."""
    if state.admitted == head.epoch:
        return True
    if not state.leads:
        return False
    rules = state.rules
    patience = rules.admit_limit_s or min(rules.last_call_s, rules.interval_s)
    return now - state.waiters_at >= patience


def waiters(state: State) -> tuple[str, ...]:
    """Living nodes outside the sealed membership that wait to come in, first come first."""
    head = state.known_head
    if head.phase is not Phase.SEALED:
        return ()
    outside = (s for s in state.seats if s not in state.ring.ranks and s not in head.gone)
    return tuple(s for s in outside if _says(state, s, f"j{head.epoch}"))


# -- a round that forms --------------------------------------------------------------------------
def _handed_over(state: State, head: Head, now: float) -> Head | None:
    """A leader that cannot seal the round itself gives the lead to a node that has arrived.

    Such as when its workers take too long to stop, or shared storage does not answer.
    """
    if not state.leads:
        return None
    rules = state.rules
    slow = not state.waiting and now - state.phase_at >= rules.regroup_limit_s
    absent = slow or state.has_finished
    stuck = state.taking and now - state.taking_at >= rules.detection_limit_s
    if not (absent or stuck or state.seat in head.gone):
        return None
    heir = next((s for s in arrived(state) if s != state.seat), None)
    return head.next(leader=heir) if heir else None


def arrived(state: State) -> tuple[str, ...]:
    """Living nodes that have said they wait for the round being formed, first come first."""
    head = state.known_head
    if head.phase is not Phase.FORMING:
        return ()
    return tuple(s for s in state.seats if s not in head.gone and _says(state, s, f"j{head.epoch}"))


def _says(state: State, seat: str, status: str) -> bool:
    if seat == state.seat:
        return state.said == status
    beat = state.beats.get(seat)
    if beat is None or beat.silent_s >= state.rules.detection_limit_s:
        return False
    return status_in(beat.text) == status and (beat.moved or not state.cautious)


def decide_members(state: State, now: float) -> tuple[str, ...]:
    """The seats that the leader may seal now, in order of rank; empty while it has to wait."""
    head, rules = state.known_head, state.rules
    if not (state.leads and state.waiting) or head.phase is not Phase.FORMING:
        return ()
    here = arrived(state)
    survivors, room = state.unfinished, _room(state)
    # Sets: it runs at every step, and looking through tuples of 1,000 seats takes 500 ms.
    present, left = frozenset(here), frozenset(survivors)
    kept = tuple(s for s in survivors if s in present)
    chosen = (kept + tuple(s for s in here if s not in left))[:room]
    if (
        state.seat not in present
        or len(chosen) < rules.min_nodes
        or not quorate(state, kept, chosen)
    ):
        return ()
    full = len(chosen) == room
    waited_s = now - state.phase_at
    if not head.members:
        ready = full or now - state.arrived_at >= _last_call_s(state, chosen)
    elif len(kept) < len(survivors):
        ready = waited_s >= rules.regroup_limit_s
    else:
        on_their_way = waited_s < COMING_INTERVALS * rules.interval_s and _coming(state, here)
        ready = full or not on_their_way
    # By node index, so that ranks survive restarts.
    return tuple(sorted(chosen, key=lambda seat: (index_of(seat), seat))) if ready else ()


def _room(state: State) -> int:
    """How many nodes a group may have; the place of a finished node stays taken."""
    return state.rules.max_nodes - state.rules.finished_before - len(state.known_head.finished)


def _last_call_s(state: State, chosen: tuple[str, ...]) -> float:
    """How long the first round waits for more nodes; at a later store, for the last group's."""
    rules = state.rules
    if rules.nodes_before == 0:
        return rules.last_call_s
    here = {index_of(seat) for seat in chosen}
    missing = (m for m in state.before if index_of(m.seat) not in here)
    known = bool(state.before) and all(m.seat in state.dead_before for m in missing)
    all_here = known or len(chosen) >= rules.nodes_before
    # All survivors notice a lost store at about the same time.
    return 0.0 if all_here else min(rules.last_call_s, 2.0)


def _coming(state: State, here: tuple[str, ...]) -> bool:
    """Whether a node outside waits for an earlier round, and so will see this one soon."""
    outside = set(state.seats) - set(here) - set(state.members)
    patience_s = COMING_INTERVALS * state.rules.interval_s
    return any(
        status_in(beat.text).startswith("j") and beat.silent_s < patience_s
        for seat, beat in state.beats.items()
        if seat in outside
    )


def quorate(state: State, kept: tuple[str, ...], chosen: tuple[str, ...]) -> bool:
    """Whether the nodes are enough to form a group; with fencing they always are.

    Without: more than half of the last membership that did not leave or finish, or so many nodes,
    replacements among them, that the absent ones cannot form a group."""
    head, rules = state.known_head, state.rules
    if rules.fenced or rules.rules_out_another(len(chosen)):
        return True
    if not head.members:
        return 2 * len(chosen) > rules.nodes_before
    away = {s for s, why in head.gone.items() if why == Cause.LEFT.value} | {*head.finished}
    left = [s for s in state.members if s in away]
    return 2 * len(kept) > len(state.members) - len(left)


def exhausted(state: State) -> bool:
    """Whether one more restart by a worker's fault is more than the user allowed."""
    head, limit = state.known_head, state.rules.max_restarts
    faults = head.counts.get(Cause.FAULT.value, 0)
    return head.cause is Cause.FAULT and 0 <= limit <= faults


def note_arrivals(state: State, now: float) -> State:
    """Remembers when the last node came: last calls and admissions wait from then on."""
    if not state.leads:
        return state
    here, outside = arrived(state), waiters(state)
    if here != state.arrived:
        state = replace(state, arrived=here, arrived_at=now)
    if outside != state.waiters:
        state = replace(state, waiters=outside, waiters_at=now)
    return state


def plan_lines(state: State) -> tuple[heads.Member, ...] | None:
    """The members to connect to; ``None`` while those of a new round are not known. Pure.

    Each node watches its successors and the leader watches all, so that several nodes that end at
    once are noticed at once. These are O(N) connections.
    """
    head = state.head
    if head is None or head.phase is Phase.CLOSED:
        return ()
    if not head.members:
        # Around a new store its leader asks who of the last group can still come.
        before = state.before if state.leads else ()
        return tuple(m for m in before if index_of(m.seat) != state.index)
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
