"""The settings of a group: every key of ``rdzv_conf``, its meaning and its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from launcher.contract.agent_settings import DETECTION_LIMIT_S
from launcher.contract.node_plan import Elastic, NodePlan

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
    """Of a node that meets others. Raises ValueError for a wrong value, TypeError for a key."""
    assert isinstance(plan.rendezvous, Elastic)
    readers: dict[str, Callable[[Any], Any]] = {"int": int, "float": float}
    kinds = {one.name: str(one.type) for one in fields(Rules)}
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
