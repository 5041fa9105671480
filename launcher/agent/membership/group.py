"""A group as plain values: the keys of ``rdzv_conf`` with their defaults, the coordinator's state,
and what it sends to the nodes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from launcher.contract.node_plan import DETECTION_LIMIT_S, Elastic, NodePlan

SIGNS_PER_S = 1000
"""The most signs of life of all nodes of a run together."""


@dataclass(frozen=True)
class Member:
    """A node of a sealed membership.

    ``name`` is ``<index>.<random>``, of one agent process. ``port`` is where its rank 0 may listen;
    its agent listens on ``answers`` as long as it lives, 0 where it cannot.
    """

    name: str
    addr: str
    port: int
    answers: int = 0
    workers: int = 1

    @property
    def node_index(self) -> int:
        """Its place in the plan."""
        return int(self.name.partition(".")[0])


@dataclass(frozen=True)
class Last:
    """The last membership that a node was in, which it tells a next coordinator.

    ``majority_of``: how many members had neither left nor finished. ``faults`` and ``finished`` are
    those of the whole run so far.
    """

    generation: int = 0
    majority_of: int = 0
    faults: int = 0
    finished: int = 0


NONE = Last()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How many nodes a group may have, and the keys of ``rdzv_conf``; durations in seconds."""

    min_nodes: int
    """A group has at least so many nodes."""
    max_nodes: int
    """A group has at most so many nodes."""
    node_index: int = 0
    """This node's place in the plan, from 0; ranks follow it."""
    detection_limit_s: float = DETECTION_LIMIT_S
    """A node silent for so long is lost. 1 s is for quiet machines only."""
    last_call_s: float = 2.0
    """In the first round, how long the group waits for more than MIN nodes after the last came."""
    join_timeout_s: float = 600.0
    """How long a forming round may take; waiting beside a running group does not count."""
    rejoin_timeout_s: float = 0.0
    """The same for a node that was in the group before; 0: ``join_timeout_s``."""
    connect_timeout_s: float = 60.0
    """How long the coordinator may take to answer at first."""
    growth_pause_s: float = 10.0
    """The least time between two admissions of newcomers."""
    workers: int = 1
    """How many this node has."""
    max_restarts: int = -1
    """Restarts by worker faults that the whole job may have; negative: any number."""
    fence_dir: str = ""
    """The checkpoint folder, if all nodes share it; else a majority has to re-form."""

    @property
    def silence_s(self) -> float:
        """A coordinator silent for so long is gone."""
        return max(2.0, self.detection_limit_s)

    @property
    def interval_s(self) -> float:
        """Between two signs of life; longer in a large run, so that its work stays the same."""
        return min(max(0.25, self.max_nodes / SIGNS_PER_S), max(0.05, self.detection_limit_s / 10))

    def rules_out_another(self, nodes: int) -> bool:
        """Whether a group of so many nodes leaves too few node indexes for another group."""
        return nodes + self.min_nodes > self.max_nodes


def parse_rules(plan: NodePlan) -> Rules:
    """The rules of an elastic node. Raises ValueError for a wrong value, TypeError for a key."""
    assert isinstance(plan.rendezvous, Elastic)
    readers: dict[str, Callable[[Any], Any]] = {"int": int, "float": float}
    kinds = {f.name: str(f.type) for f in fields(Rules)}
    values = {
        key: readers.get(kinds.get(key, ""), str)(value) for key, value in plan.rendezvous.conf
    }
    return Rules(
        min_nodes=plan.min_nodes,
        max_nodes=plan.max_nodes,
        node_index=plan.node_index,
        workers=plan.nproc_per_node,
        max_restarts=plan.max_restarts,
        **values,
    )


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
"""Another coordinator of this run has taken a later generation."""
OTHER_RUN = "other run: "
"""What comes before the id of another run that has taken a later generation."""


@dataclass(kw_only=True)
class GroupStatus:
    """Where the run stands, as all nodes are told."""

    sealed: bool = False
    """Whether a group is formed; while none is, one forms."""
    closed: str = ""
    """Why the run is over, by the words above; empty while it goes on."""
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
    """When the round began."""
    arrived_at: float = 0.0
    """When the last node came; what a first round waits for."""
    grown_at: float = float("-inf")
    refuse_at: float = float("inf")
    """The earliest time at which a waiting node's limit may be over."""

    def working(self) -> set[str]:
        """The members that are there and whose workers have not all succeeded."""
        return {member.name for member in self.members} - self.gone.keys()

    @property
    def room(self) -> int:
        """How many nodes a group may have; the place of a finished node stays taken."""
        return self.rules.max_nodes - self.finished

    def status(self) -> GroupStatus:
        """What all nodes are told."""
        return GroupStatus(**{f.name: getattr(self, f.name) for f in fields(GroupStatus)})
