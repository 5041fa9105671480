"""The head: the one small value in the store that every node polls and that says where the run is.

It changes only by compare-and-swap on its whole text: a write that is based on an old text fails.
All functions here are pure.

    FORMING(n) --seal--> SEALED(n) --open--> FORMING(n + 1) --> ...      any --close--> CLOSED

A *seat* is a node's entry: ``<node index>.<random>``. A node that was struck off and comes back
takes a new seat.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple


class Phase(enum.Enum):
    """Where the current round stands."""

    FORMING = "forming"
    SEALED = "sealed"
    CLOSED = "closed"


class Cause(enum.Enum):
    """Why a round was opened; also the names under which rounds are counted."""

    FIRST = "first"
    FAULT = "fault"
    """A worker failed while its group was whole: the only cause that counts as a restart."""
    LOST = "lost"
    LEFT = "left"
    REPLACED = "replaced"
    """Another node came with the same index: a restarted agent, or two nodes told the same."""
    JOINED = "joined"
    FENCED = "fenced"
    """A leader of this same store took a generation after it had lost the lead."""


REPLACED = Cause.REPLACED.value
FINISHED = "finished"
EXHAUSTED = "restarts-exhausted"
FAILED = "failed"
STRANDED = "stranded"
"""Some nodes have finished, and those that have not are too few to form a group."""
FENCED_OUT = "fenced"


@dataclass(frozen=True, kw_only=True)
class Head:
    """The state of the run's membership.

    ``epoch`` is the number of the round being formed or sealed. ``members`` is the key under
    which the last sealed membership lies, empty before the first; ``nodes`` its size. ``gone``
    maps those of its seats that were lost or left to the cause. ``newcomers`` is how many waiting
    nodes could be admitted. ``counts`` holds sealed rounds by cause. ``finished`` are the seats, of
    any round, whose workers have all succeeded: they join no further round. ``origin`` tells one
    store of a run from the next.
    """

    origin: str
    leader: str
    version: int = 1
    phase: Phase = Phase.FORMING
    epoch: int = 1
    members: str = ""
    nodes: int = 0
    generation: int = 0
    cause: Cause = Cause.FIRST
    gone: Mapping[str, str] = field(default_factory=dict)
    newcomers: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    closed: str = ""

    def next(self, **changes: Any) -> Head:
        return replace(self, version=self.version + 1, **changes)


class Member(NamedTuple):
    """One node of a sealed membership. Every node has one of these for each member.

    ``port`` is where its rank 0 may listen, ``lifeline`` where its agent answers (see
    ``answering.py``), empty where it does not; ``workers`` how many it has, 0 where unknown.
    """

    seat: str
    addr: str
    port: int
    lifeline: str = ""
    workers: int = 0


class Ring(tuple[Member, ...]):
    """The members of a sealed membership in order of rank.

    Seats and ranks are worked out once: every node looks at them several times at every pulse.
    """

    @cached_property
    def seats(self) -> tuple[str, ...]:
        return tuple(member.seat for member in self)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        return {seat: rank for rank, seat in enumerate(self.seats)}


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What ``next_rendezvous`` gives one node: its rank among the members in order of index."""

    epoch: int
    generation: int
    rank: int
    members: tuple[Member, ...]
    cause: Cause


def format_head(head: Head) -> str:
    """One line of JSON, the same for equal heads."""
    data = asdict(head) | {"phase": head.phase.value, "cause": head.cause.value}
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def parse_head(text: str) -> Head:
    data = json.loads(text)
    typed = {"phase": Phase(data["phase"]), "cause": Cause(data["cause"])}
    return Head(**data | typed | {"finished": tuple(data["finished"])})


def are_identical(members: tuple[Member, ...]) -> bool:
    """Whether all nodes have said that they have the same number of workers."""
    numbers = {member.workers for member in members}
    return len(numbers) == 1 and 0 not in numbers


def format_members(members: tuple[Member, ...]) -> str:
    return json.dumps(members, separators=(",", ":"))


def parse_members(text: str) -> Ring:
    return Ring(Member(*fields) for fields in json.loads(text))


def format_card(addr: str, port: int, lifeline: str = "", workers: int = 0) -> str:
    return json.dumps([addr, port, lifeline, workers])


def index_of(seat: str) -> int:
    """The node index a seat belongs to."""
    return int(seat.partition(".")[0])


def open_round(head: Head, cause: Cause) -> Head:
    """The running group has to re-form."""
    return head.next(phase=Phase.FORMING, epoch=head.epoch + 1, cause=cause, newcomers=0)


def strike(head: Head, gone: Mapping[str, Cause], leader: str) -> Head:
    """Members were lost or left: a round opens, or the one that is open gets its true cause."""
    was_sealed = head.phase is Phase.SEALED
    opened = replace(open_round(head, Cause.LOST), version=head.version) if was_sealed else head
    cause = next(iter(gone.values())) if was_sealed or head.cause is Cause.FAULT else head.cause
    marks = {seat: why.value for seat, why in gone.items()}
    return opened.next(leader=leader, cause=cause, gone={**head.gone, **marks})


def seal(
    head: Head,
    members: str,
    seats: tuple[str, ...],
    generation: int,
    still_there: frozenset[str] = frozenset(),
) -> Head:
    """The round is complete; replaced nodes that are ``still_there`` have yet to learn of it."""
    counts = dict(head.counts)
    if head.cause is not Cause.FIRST:
        counts[head.cause.value] = counts.get(head.cause.value, 0) + 1
    return head.next(
        phase=Phase.SEALED,
        leader=head.leader if head.leader in seats else seats[0],
        members=members,
        nodes=len(seats),
        generation=generation,
        gone={s: why for s, why in head.gone.items() if s in still_there and why == REPLACED},
        newcomers=0,
        counts=counts,
    )


def close(head: Head, reason: str) -> Head:
    """No further round will be formed under this run id."""
    return head.next(phase=Phase.CLOSED, closed=reason)
