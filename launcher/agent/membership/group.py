"""What the coordinator knows of the run's group: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.agent.membership.settings import NONE, Last, Member, Rules


class Phase(enum.Enum):
    """Where the current round stands."""

    FORMING = "forming"
    SEALED = "sealed"
    CLOSED = "closed"


class Cause(enum.Enum):
    """Why a round was opened."""

    FIRST = "first"
    FAULT = "fault"
    """A worker failed while its group was whole: the only cause that counts as a restart."""
    LOST = "lost"
    LEFT = "left"
    REPLACED = "replaced"
    """Another node came with the same index: a restarted agent, or two nodes told the same."""
    JOINED = "joined"


FINISHED = "finished"
EXHAUSTED = "restarts-exhausted"
FAILED = "failed"
STRANDED = "stranded"
"""Some nodes have finished, and those that have not are too few to form a group."""
FENCED_OUT = "fenced"
"""Another coordinator has taken a later generation."""


@dataclass(frozen=True, kw_only=True)
class NodeEntry:
    """A node that is there. ``waits``: it asks for a rendezvous, since ``since``.

    A forming round that takes longer than ``limit_s`` is too long for it. ``last`` is the
    generation of its last membership around another coordinator, 0 for none.
    """

    member: Member
    waits: bool = False
    since: float = 0.0
    limit_s: float = 600.0
    last: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """The whole state of a run's membership, which the coordinator alone has.

    ``nodes`` are those that are there, first come first. ``members`` is the last sealed membership
    in order of rank, and ``gone`` says of those that were struck off why. ``finished`` are the
    names, of any round, whose workers have all succeeded: they join no further round.
    """

    rules: Rules
    phase: Phase = Phase.FORMING
    epoch: int = 1
    cause: Cause = Cause.FIRST
    closed: str = ""
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)
    members: tuple[Member, ...] = ()
    gone: Mapping[str, Cause] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Nodes in whose place another one came: they do not come back."""
    last: Last = NONE
    """The newest membership around another coordinator that a node has told of."""
    dead: int = 0
    """How many of its members are known to be dead."""
    generation: int = 0
    faults: int = 0
    newcomers: int = 0
    """How many waiting nodes could be admitted; announced once the group is calm."""
    admitted: bool = False
    taking: bool = False
    """Whether a generation is being taken from the shared folder."""
    taken: int = 0
    phase_at: float = 0.0
    arrived_at: float = 0.0
    grown_at: float = float("-inf")
    waiting_at: float = 0.0


def working(group: GroupState) -> tuple[Member, ...]:
    """The members that were not struck off and whose workers have not all succeeded."""
    away = group.finished | group.gone.keys()
    return tuple(member for member in group.members if member.name not in away)


def counted(group: GroupState) -> int:
    """Of how many members a majority has to come again: those that did not leave or finish."""
    left = {name for name, why in group.gone.items() if why is Cause.LEFT} | group.finished
    return sum(member.name not in left for member in group.members)


def waiting(group: GroupState) -> tuple[Member, ...]:
    """The nodes that ask for a rendezvous, first come first."""
    return tuple(node.member for node in group.nodes.values() if node.waits)


def are_identical(members: tuple[Member, ...]) -> bool:
    """Whether all nodes have said that they have the same number of workers."""
    numbers = {member.workers for member in members}
    return len(numbers) == 1 and 0 not in numbers
