"""What one node knows of the run, and how the store's answers change it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from launcher.agent.roster import events
from launcher.agent.roster import membership as heads
from launcher.agent.roster.settings import WATCHED, Rules

HEAD = "head"
SEATS = "seats"
FINISHED_MARK = "+"
"""Before a seat in the list of seats: its workers have all succeeded."""
FAST_FOR_S = 5.0
SUSPECT_INTERVALS = 2
"""Pulses without a change after which a watcher also looks at the nodes behind the silent one, and
after which a node whose connection has closed is lost."""


@dataclass(frozen=True)
class Beat:
    """The last text of a node's beat, for how many watched seconds it has not changed, and whether
    it has ever changed: a first look proves no life."""

    text: str
    silent_s: float = 0.0
    moved: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """All that one node knows and wants."""

    rules: Rules
    index: int
    nonce: str
    seat: str
    turn: int = 0
    card: str = ""
    # wishes
    waiting: bool = False
    leaving: bool = False
    finishing: bool = False
    finishing_at: float = 0.0
    closing: str = ""
    admitted: int = 0
    fenced_out: events.Fenced | None = None
    # this node in the run
    entered: int = 0
    waited_s: float = 0.0
    # what was seen
    text: str = ""
    head: heads.Head | None = None
    ring: heads.Ring = field(default_factory=heads.Ring)
    ring_key: str = ""
    beats: Mapping[str, Beat] = field(default_factory=dict)
    closed_lines: Mapping[str, int] = field(default_factory=dict)
    """Members whose connection has closed, and how often their beat has changed since."""
    before: tuple[heads.Member, ...] = ()
    dead_before: frozenset[str] = frozenset()
    """The seats in ``before``, the members under an earlier store, that are gone."""
    listing: str = ""
    seats: tuple[str, ...] = ()
    """In the order of the list."""
    finished_seats: tuple[str, ...] = ()
    cautious: bool = False
    looked_at: float = math.inf
    phase_at: float = 0.0
    grown_at: float = -math.inf
    arrived: tuple[str, ...] = ()
    arrived_at: float = 0.0
    waiters: tuple[str, ...] = ()
    waiters_at: float = 0.0
    # the pulse under way
    count: int = 0
    asked: events.StoreAction | None = None
    said: str = ""
    due: bool = False
    carded: str = ""
    enlisted: str = ""
    told_finished: bool = False
    looked: bool = True
    swaps: int = 0
    # the seal under way, of the leader only
    sealing: tuple[str, ...] = ()
    cards: Mapping[str, heads.Member] = field(default_factory=dict)
    taking: bool = False
    taking_at: float = 0.0
    taken: int | None = None
    written: str = ""

    @property
    def members(self) -> tuple[str, ...]:
        """The seats of the last sealed membership, in order of rank."""
        return self.ring.seats

    @property
    def known_head(self) -> heads.Head:
        """The head, once it is known."""
        assert self.head is not None
        return self.head

    @property
    def leads(self) -> bool:
        return self.head is not None and self.head.leader == self.seat

    @property
    def belongs(self) -> bool:
        """Whether this node is a member and was not struck off."""
        return (
            self.head is not None
            and self.seat in self.ring.ranks
            and self.seat not in self.head.gone
        )

    @property
    def has_finished(self) -> bool:
        """Whether the run knows that this node's workers have all succeeded."""
        return self.head is not None and self.seat in self.head.finished

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The members that were not struck off and whose workers have not all succeeded."""
        away = {*self.known_head.gone, *self.known_head.finished}
        return tuple(seat for seat in self.members if seat not in away)


def may_form(state: State) -> bool:
    """Whether the nodes that have not finished could still form a group."""
    head, rules = state.head, state.rules
    finished = rules.finished_before + (len(head.finished) if head else 0)
    return finished == 0 or rules.max_nodes - finished >= rules.min_nodes


def status_of(state: State) -> str:
    """A beat's status: leaving, waiting for a round, or running in one."""
    if state.leaving:
        return "l"
    if state.waiting and state.head is not None:
        return f"j{state.head.epoch}"
    return f"r{state.entered}"


def status_in(text: str) -> str:
    return text.rpartition(" ")[2]


def beat_key(seat: str) -> str:
    return f"beat/{seat}"


def card_key(seat: str) -> str:
    return f"card/{seat}"


def nodes_waiting(state: State) -> int:
    """What ``num_nodes_waiting`` reports: above zero when the group has to re-form."""
    head = state.head
    if head is None or state.waiting or state.entered == 0:
        return 0
    if head.phase is heads.Phase.CLOSED:
        return int(head.closed != heads.FINISHED)
    return int(head.phase is heads.Phase.FORMING or head.epoch != state.entered)


def pause_s(state: State, now: float) -> float:
    """Seconds until the next pulse: quick while a round forms, the run ends or a node may be lost,
    never for long."""
    head, rules = state.head, state.rules
    if head is None:
        return rules.interval_s
    forms = (
        head.phase is heads.Phase.FORMING and state.waiting and now - state.phase_at <= FAST_FOR_S
    )
    ends = state.finishing and now - state.finishing_at <= FAST_FOR_S
    doubts = state.closed_lines and state.closed_lines.keys() - lost(state)
    if not (forms or ends or doubts):
        return rules.interval_s
    return min(rules.interval_s, max(0.02, rules.max_nodes * 0.0005))


# -- whom a node watches, and when silence means loss --------------------------------------------
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


def lost(state: State) -> frozenset[str]:
    """Seats that are lost, as far as this node sees.

    They have been silent for the limit, or their connection has closed and their beat stands still.
    """
    quiet = silent(state.beats, state.rules.detection_limit_s)
    if not state.closed_lines:
        return quiet
    still = silent(state.beats, SUSPECT_INTERVALS * state.rules.interval_s)
    return quiet | (still & state.closed_lines.keys())


def with_closed_line(state: State, seat: str) -> State:
    """Notes that the connection to a node has closed: its beat is judged anew from now on."""
    if state.head is not None and seat in state.members and seat not in state.head.gone:
        beats = {s: beat for s, beat in state.beats.items() if s != seat}
        lines = {**state.closed_lines, seat: 0}
        return replace(state, beats=beats, closed_lines=lines, looked=False, swaps=0)
    if any(member.seat == seat for member in state.before):
        return replace(state, dead_before=state.dead_before | {seat})
    return state


def with_open_line(state: State, seat: str) -> State:
    """Notes that the node answers after all."""
    lines = {s: changes for s, changes in state.closed_lines.items() if s != seat}
    return replace(state, closed_lines=lines, dead_before=state.dead_before - {seat})


def _note_signs_of_life(state: State, beats: Mapping[str, Beat]) -> State:
    """Counts the changes of beats that should not change any more."""
    if not state.closed_lines or state.head is None:
        return state
    lines = {}
    for seat, changes in state.closed_lines.items():
        old, new = state.beats.get(seat), beats.get(seat)
        changes += old is not None and new is not None and old.text != new.text
        # One change does not show that a node lives: the last that it wrote may come late.
        if changes < 2 and seat not in state.head.gone:
            lines[seat] = changes
    return replace(state, closed_lines=lines)


def plan_watched(
    ring: tuple[str, ...], at: int, gone: Collection[str], suspects: frozenset[str], width: int
) -> tuple[str, ...]:
    """The seats that the node at place ``at`` watches: its next ``width`` successors in ``ring``.

    While all of these are suspects the window doubles, so that a whole rack that goes dark is
    noticed by the node before it.
    """
    # Lazily: every pulse needs only a few of maybe 1,000 members.
    behind = (s for s in chain(islice(ring, at + 1, None), islice(ring, at)) if s not in gone)
    watched = tuple(islice(behind, width))
    while suspects.issuperset(watched) and (more := tuple(islice(behind, len(watched)))):
        watched += more
    return watched


# -- what is seen ------------------------------------------------------------------------------
def adopt(state: State, text: str, now: float) -> State:
    """Takes over the present head. Forgets what belonged to an older round or to a lost lead."""
    if text == state.text:
        return state
    head, old = heads.parse_head(text), state.head
    if old is not None and old.origin == head.origin and head.version < old.version:
        return state
    state = replace(state, text=text, head=head)
    if old is None or (old.epoch, old.phase) != (head.epoch, head.phase):
        state = replace(state, phase_at=now, arrived=(), arrived_at=now, waiters=(), cautious=False)
        if head.phase is heads.Phase.SEALED and head.cause is heads.Cause.JOINED:
            state = replace(state, grown_at=now)
    elif head.phase is heads.Phase.FORMING and head.leader == state.seat != old.leader:
        # nodes that came under the last leader may be gone with it
        state = replace(state, cautious=True)
    if not state.leads or old is None or old.epoch != head.epoch:
        state = replace(state, sealing=(), cards={}, taken=None, written="")
    return state


def see(state: State, values: Mapping[str, str], now: float) -> State:
    """Takes in the head, the watched beats and, for the leader, the list of all seats."""
    # Capped: a node that slept has learned nothing about the others meanwhile.
    elapsed_s = min(max(0.0, now - state.looked_at), 2 * state.rules.interval_s)
    heard = {k.removeprefix("beat/"): v for k, v in values.items() if k.startswith("beat/")}
    beats = listen(state.beats, heard, elapsed_s)
    state = _note_signs_of_life(state, beats)
    state = replace(state, beats=beats, looked=True, looked_at=now)
    state = _note_seats(state, values.get(SEATS, state.listing))
    state = adopt(state, values[HEAD], now)
    if state.waiting and state.head and state.head.phase is heads.Phase.FORMING:
        state = replace(state, waited_s=state.waited_s + elapsed_s)
    return state


def _note_seats(state: State, listing: str) -> State:
    if listing == state.listing:
        return state
    listed = listing.split()
    finished = tuple(s.removeprefix(FINISHED_MARK) for s in listed if s[0] == FINISHED_MARK)
    seats = tuple(s for s in listed if s[0] != FINISHED_MARK)
    looked = {*state.seats, *state.beats}.issuperset(seats)  # at new seats right away
    return replace(state, listing=listing, seats=seats, finished_seats=finished, looked=looked)


def keys_to_look_at(state: State) -> tuple[str, ...]:
    """The head and a few beats; only the leader reads more."""
    head = state.known_head
    heard: tuple[str, ...] = ()
    if state.leads:
        heard = tuple(dict.fromkeys((*state.seats, *state.members)))
        if head.phase is heads.Phase.SEALED:
            heard = tuple(s for s in heard if s not in state.ring.ranks)
    elif head.phase is heads.Phase.FORMING or not state.belongs or head.leader in head.finished:
        heard = (head.leader,)
    if state.belongs or state.has_finished:
        suspects = silent(state.beats, SUSPECT_INTERVALS * state.rules.interval_s)
        # A node that has finished and is no member any more stands behind the last.
        at = state.ring.ranks.get(state.seat, len(state.ring))
        skipped = {*head.gone, *head.finished}
        heard += plan_watched(state.members, at, skipped, suspects, WATCHED)
    heard += tuple(state.closed_lines)
    beats = tuple(beat_key(s) for s in dict.fromkeys(heard) if s != state.seat)
    return (HEAD, SEATS, *beats) if state.leads and state.enlisted else (HEAD, *beats)


def answered(
    state: State, event: events.Done | events.Values | events.Swapped, now: float
) -> State:
    """Takes in the store's answer to the action under way."""
    asked, state = state.asked, replace(state, asked=None)
    match asked, event:
        case events.Write(key), events.Done() if key == state.written:
            return state
        case events.Write(key), events.Done() if key == card_key(state.seat):
            return replace(state, carded=asked.text)
        case events.Write(key), events.Done() if key != beat_key(state.seat):
            return state  # of a seat that this node has given up since
        case events.Write(), events.Done():
            return replace(state, said=status_in(asked.text), due=False, count=state.count + 1)
        case events.Enlist(seat), events.Done() if seat.startswith(FINISHED_MARK):
            return replace(state, told_finished=True, looked=False)
        case events.Enlist(seat), events.Done():
            return replace(state, enlisted=seat)
        case events.Swap(), events.Swapped(text):
            return _after_swap(state, asked, text, now)
        case events.Fetch((key,)), events.Values(values) if key.startswith("members/"):
            return replace(state, ring=heads.parse_members(values[key]), ring_key=key)
        case events.Fetch(keys), events.Values(values) if keys[0].startswith("card/"):
            cards = {k.removeprefix("card/"): v for k, v in values.items()}
            members = {s: heads.Member(s, *json.loads(c)) for s, c in cards.items()}
            return replace(state, cards=members)
        case events.Fetch(), events.Values(values):
            return see(state, values, now)
    raise AssertionError(f"{event} does not answer {asked}")


def _after_swap(state: State, asked: events.Swap, text: str, now: float) -> State:
    won = text == asked.desired
    sealed = state.written
    ring = heads.Ring(state.cards[s] for s in state.sealing if s in state.cards)
    state = adopt(replace(state, swaps=state.swaps + 1, looked=False), text, now)
    if won and sealed and state.head and state.head.members == sealed:
        state = replace(state, ring=ring, ring_key=sealed)
    return state


def first_head(state: State) -> str:
    """The head of an empty store."""
    faults = state.rules.faults_before
    head = heads.Head(
        origin=state.nonce,
        leader=state.seat,
        counts={heads.Cause.FAULT.value: faults} if faults else {},
        generation=state.rules.generation_before,
    )
    return heads.format_head(head)
