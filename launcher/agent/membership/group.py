"""What the coordinator knows of the run's group, and what it tells the nodes: plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields

from launcher.agent.membership.settings import NONE, Last, Member, Rules


class RoundCause(enum.StrEnum):
    """Why a round was opened, or why a node is not there."""

    FIRST = "first"
    FAULT = "fault"
    """A worker failed while its group was whole: the only cause that counts as a restart."""
    LOST = "lost"
    LEFT = "left"
    FINISHED = "finished"
    """All workers of the node have succeeded; this opens no round."""
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


@dataclass(kw_only=True)
class GroupStatus:
    """Where the run stands, as all nodes are told."""

    sealed: bool = False
    """Whether a group is formed; while none is, one forms."""
    closed: str = ""
    """Why the run is over; empty while it goes on."""
    cause: RoundCause = RoundCause.FIRST
    generation: int = 0
    newcomers: int = 0
    """How many waiting nodes could be admitted; announced once the group is calm."""
    majority_of: int = 0
    """Members of the last sealed membership that have neither left nor finished."""
    faults: int = 0
    """Restarts by a worker's fault so far."""
    finished: int = 0
    """Nodes of the run whose workers have all succeeded."""
    heals: bool = False
    """Whether a group is formed whose workers go on in the same processes when it changes. Then a
    newcomer starts its workers before it asks for a rendezvous."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A node's place in a sealed group: its rank among ``size`` nodes in order of index.

    ``workers`` are those of all nodes, ``before`` those of the nodes with lower ranks.
    """

    generation: int
    rank: int
    size: int
    cause: RoundCause
    first: Member
    before: int
    workers: int


@dataclass(frozen=True)
class Join:
    """A node asks for a rendezvous, for the first time or again, for ``limit_s`` at most."""

    member: Member
    limit_s: float
    last: Last = NONE
    """The last membership that it was told, here or elsewhere."""
    since: float = 0.0
    """When it was heard."""


@dataclass(kw_only=True)
class GroupState(GroupStatus):
    """The whole state of a run's membership, which the coordinator alone has.

    FORMING --seal--> SEALED --open--> FORMING --> ...      either --close--> CLOSED
    """

    rules: Rules
    waiting: dict[str, Join] = field(default_factory=dict)
    """By name, first come first."""
    newest: dict[int, str] = field(default_factory=dict)
    """The node that came last with each index."""
    members: tuple[Member, ...] = ()
    """The last membership that was sealed here, in order of rank."""
    gone: dict[str, RoundCause] = field(default_factory=dict)
    """Why a node is not there. One that was lost may come again."""
    healing: frozenset[str] = frozenset()
    """The nodes whose workers have said that they heal."""
    taken: int = 0
    """The next generation, once it was taken; -1 while it is being taken."""
    phase_at: float = 0.0
    arrived_at: float = 0.0
    """When the last node came, or when the round began if that was later."""
    grown_at: float = float("-inf")

    def working(self) -> set[str]:
        """The members that are there and whose workers have not all succeeded."""
        return {member.name for member in self.members} - self.gone.keys()

    @property
    def room(self) -> int:
        """How many nodes a group may have; the place of a finished node stays taken."""
        return self.rules.max_nodes - self.finished

    def status(self) -> GroupStatus:
        """What all nodes are told."""
        return GroupStatus(**{one.name: getattr(self, one.name) for one in fields(GroupStatus)})
