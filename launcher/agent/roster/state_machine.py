"""The roster's state machine: (state, event, now) -> (state, actions). Nothing here acts.

A node *pulses*: it writes its beat, looks at the head and at the few nodes it watches, and acts on
what it saw. Each operation on the store is one action and is answered by one event, so that a
simulation can stop, delay or lose a node between any two of them. ``now`` is this node's own
monotonic clock; no value of one node's clock ever reaches another.
"""

from __future__ import annotations

from dataclasses import replace

from launcher.agent.roster import events
from launcher.agent.roster import membership as heads
from launcher.agent.roster.decide import (
    decide_change,
    decide_members,
    exhausted,
    note_arrivals,
    quorate,
)
from launcher.agent.roster.settings import Rules
from launcher.agent.roster.view import (
    FINISHED_MARK,
    State,
    answered,
    beat_key,
    card_key,
    first_head,
    keys_to_look_at,
    silent,
    status_of,
    with_closed_line,
    with_open_line,
)

MAX_SWAPS_PER_PULSE = 4


def start(rules: Rules, index: int, nonce: str) -> State:
    """A node before it joins; ``nonce`` tells its seats from those of its predecessors."""
    before = heads.parse_members(rules.members_before) if rules.members_before else ()
    return State(rules=rules, index=index, nonce=nonce, seat=f"{index}.{nonce}-0", before=before)


def step(state: State, event: events.Event, now: float) -> tuple[State, tuple[events.Action, ...]]:
    """The state after one event, at most one operation on the store, and notices for the caller."""
    state = _take_in(state, event, now)
    state, notices = _settle(state)
    if state.asked is not None:
        return state, notices
    state, action = _next(note_arrivals(state, now), now) if state.head else _begin(state)
    if isinstance(action, events.Write | events.Enlist | events.Fetch | events.Swap):
        state = replace(state, asked=action)
    return state, (*notices, action) if action else notices


# -- taking in ---------------------------------------------------------------------------------
def _take_in(state: State, event: events.Event, now: float) -> State:
    match event:
        case events.PlainEvent.PULSE:
            return _pulse(state)
        case events.Join(card):
            return _pulse(replace(state, waiting=True, card=card, carded="", waited_s=0.0))
        case events.PlainEvent.LEAVE:
            return _pulse(replace(state, leaving=True))
        case events.PlainEvent.FINISH:
            at = state.finishing_at if state.finishing else now
            return _pulse(replace(state, finishing=True, finishing_at=at))
        case events.Close(reason):
            return _pulse(replace(state, closing=reason))
        case events.PlainEvent.ADMIT:
            return replace(state, admitted=state.entered)
        case events.Fenced(foreign):
            closing = heads.FENCED_OUT if foreign else state.closing
            return replace(state, fenced_out=event, closing=closing)
        case events.Generation(number):
            stale = not state.head or not state.leads or (number or 0) <= state.head.generation
            return replace(state, taking=False, taken=None if stale else number)
        case events.LineClosed(seat):
            return with_closed_line(state, seat)
        case events.LineOpen(seat):
            return with_open_line(state, seat)
        case events.Done() | events.Values() | events.Swapped():
            return answered(state, event, now)


def _pulse(state: State) -> State:
    return replace(state, due=True, looked=False, swaps=0)


# -- notices for the caller ---------------------------------------------------------------------
def _settle(state: State) -> tuple[State, tuple[events.Action, ...]]:
    """Ends the caller's wait where the head says so, and replaces a seat that was struck off."""
    head = state.head
    if head is None or not state.waiting:
        return state, ()
    if refusal := _refusal(state):
        return replace(state, waiting=False), (refusal,)
    if state.seat in head.gone:
        turn = state.turn + 1
        seat = f"{state.index}.{state.nonce}-{turn}"
        return replace(state, turn=turn, seat=seat, carded="", enlisted="", due=True), ()
    known = head.phase is heads.Phase.SEALED and state.ring_key == head.members
    if not known or not state.belongs or state.entered == head.epoch:
        return state, ()
    membership = heads.Membership(
        epoch=head.epoch,
        generation=head.generation,
        rank=state.ring.ranks[state.seat],
        members=state.ring,
        cause=head.cause,
    )
    state = replace(state, waiting=False, entered=head.epoch, fenced_out=None)
    return state, (events.Deliver(membership),)


def _refusal(state: State) -> events.Refuse | None:
    head = state.known_head
    if head.phase is heads.Phase.CLOSED:
        return events.Refuse("closed", f"the run is closed: {head.closed}")
    if head.gone.get(state.seat) == heads.REPLACED:
        text = f"another node came with node_index {state.index}: each node needs its own"
        return events.Refuse("replaced", text)
    if state.waited_s >= _join_limit_s(state):
        return events.Refuse("timeout", _why_not(state))
    return None


def _join_limit_s(state: State) -> float:
    was_in = state.entered > 0 or state.rules.nodes_before > 0
    return (was_in and state.rules.rejoin_timeout_s) or state.rules.join_timeout_s


def _why_not(state: State) -> str:
    head, rules = state.known_head, state.rules
    since = f"no membership was formed within {_join_limit_s(state):g} s"
    here = state.arrived
    kept = tuple(s for s in here if s in state.members)
    if state.leads and len(here) < rules.min_nodes:
        return f"{since}: {len(here)} of at least {rules.min_nodes} nodes are here"
    if state.leads and not quorate(state, kept, here):
        size = head.nodes or rules.nodes_before
        return (
            f"{since}: no majority of the last {size} nodes is here ({len(here)}), and no shared "
            "checkpoint folder fences the run"
        )
    return since


# -- the next operation ------------------------------------------------------------------------
def _begin(state: State) -> tuple[State, events.Action | None]:
    """Before the head is known. The beat is written first, because others read their leader's."""
    if state.due:
        return state, events.Write(beat_key(state.seat), f"{state.count} {status_of(state)}")
    return state, events.Swap("", first_head(state)) if state.waiting or state.closing else None


def _next(state: State, now: float) -> tuple[State, events.Action | None]:
    head = state.known_head
    if state.waiting and state.carded != state.card:
        return state, events.Write(card_key(state.seat), state.card)
    if state.due or state.said != status_of(state):
        return state, events.Write(beat_key(state.seat), f"{state.count} {status_of(state)}")
    if state.waiting and state.enlisted != state.seat:
        return state, events.Enlist(state.seat)
    if state.finishing and not state.told_finished:
        return state, events.Enlist(FINISHED_MARK + state.seat)
    if not state.looked:
        return state, events.Fetch(keys_to_look_at(state))
    if head.members != state.ring_key:
        return state, events.Fetch((head.members,))
    if state.swaps >= MAX_SWAPS_PER_PULSE:
        return state, None
    if desired := decide_change(state, now):
        return state, events.Swap(state.text, heads.format_head(desired))
    return _seal(state, now)


def _seal(state: State, now: float) -> tuple[State, events.Action | None]:
    """The leader's steps to a membership: generation, cards, the list of members, the head."""
    head = state.known_head
    chosen = decide_members(state, now)
    if not chosen:
        return state, None
    if exhausted(state):
        return state, events.Swap(state.text, heads.format_head(heads.close(head, heads.EXHAUSTED)))
    if state.taken is None and state.rules.fenced:
        if state.taking:
            return state, None
        return replace(state, taking=True, taking_at=now), events.TakeGeneration()
    if chosen != state.sealing:
        state = replace(state, sealing=chosen, cards={}, written="")
    if not state.cards:
        return state, events.Fetch(tuple(card_key(s) for s in chosen))
    key = f"members/{head.epoch}-{state.seat}-{head.version}"
    if state.written != key:
        members = tuple(state.cards[s] for s in chosen)
        return replace(state, written=key), events.Write(key, heads.format_members(members))
    generation = state.taken or state.rules.generation_before + head.epoch
    there = frozenset(state.beats) - silent(state.beats, state.rules.detection_limit_s)
    return state, events.Swap(
        state.text, heads.format_head(heads.seal(head, key, chosen, generation, there))
    )
