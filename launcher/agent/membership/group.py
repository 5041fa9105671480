"""What the coordinator knows of the run's group, and what it tells the nodes: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from launcher.agent.membership.settings import NONE, Last, Member, Rules


class Phase(enum.StrEnum):
    """Where the current round stands."""

    FORMING = "forming"
    SEALED = "sealed"
    CLOSED = "closed"


class Cause(enum.StrEnum):
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
class GroupStatus:
    """Where the run stands, as all nodes are told."""

    phase: Phase = Phase.FORMING
    epoch: int = 1
    cause: Cause = Cause.FIRST
    closed: str = ""
    newcomers: int = 0
    """How many waiting nodes could be admitted."""
    finished: int = 0
    """Nodes of the run whose workers have all succeeded."""
    generation: int = 0
    faults: int = 0
    """Restarts by a worker's fault so far."""
    may_form: bool = True
    """Whether the nodes that have not finished could form another group."""
    majority_of: int = 0
    """Members of the last sealed membership that have neither left nor finished."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A node's place in a sealed group: its rank among ``size`` nodes in order of index.

    ``members`` are known to nodes that may have to serve next, and to no others. ``identical``:
    all nodes have equally many workers.
    """

    epoch: int
    generation: int
    rank: int
    size: int
    first: Member
    cause: Cause
    identical: bool
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
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
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    newest: dict[int, str] = field(default_factory=dict)
    """The node that came last with each index."""
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

    def works(self, name: str) -> bool:
        """Whether this node is one of those that ``working`` returns."""
        return any(member.name == name for member in self.working())

    def working(self) -> tuple[Member, ...]:
        """The members that were not struck off and whose workers have not all succeeded."""
        away = self.finished | self.gone.keys()
        return tuple(member for member in self.members if member.name not in away)

    def waiting(self) -> tuple[Member, ...]:
        """The nodes that ask for a rendezvous and have not finished, first come first."""
        nodes = self.nodes.items()
        return tuple(x.member for name, x in nodes if x.waits and name not in self.finished)

    @property
    def room(self) -> int:
        """How many nodes a group may have; the place of a finished node stays taken."""
        return self.rules.max_nodes - self.last.finished - len(self.finished)

    @property
    def may_form(self) -> bool:
        """Whether the nodes that have not finished could still form a group."""
        return self.room == self.rules.max_nodes or self.room >= self.rules.min_nodes

    @property
    def majority_of(self) -> int:
        """Of how many members more than half have to come again, if nothing fences the run."""
        if not self.members:
            return self.last.majority_of
        left = {name for name, why in self.gone.items() if why is Cause.LEFT} | self.finished
        return sum(member.name not in left for member in self.members)

    def status(self) -> GroupStatus:
        """What all nodes are told."""
        told = {one.name: getattr(self, one.name) for one in fields(GroupStatus)}
        told |= {"finished": self.last.finished + len(self.finished)}
        return GroupStatus(**told)

    def membership(self) -> dict[str, Any]:
        """What the members are told of the group that was sealed last, but for their ranks."""
        workers = {member.workers for member in self.members}
        return {
            "epoch": self.epoch,
            "generation": self.generation,
            "size": len(self.members),
            "first": self.members[0],
            "cause": self.cause,
            "identical": len(workers) == 1 and 0 not in workers,
        }
