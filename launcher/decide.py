"""What a run needs next, decided from its plan and what its target reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.node_plan import Elastic
from launcher.plan import LaunchPlan
from launcher.state import NodeState, Reason
from launcher.targets.base import NodeObservation, Observation

FALL_S = 5.0
"""How long nodes that fall with a failed one get, so that the report can tell them apart."""
FINISH_S = 60.0
"""How long the others get once one elastic node has finished: agents leave through a barrier."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True, kw_only=True)
class Replace:
    """Start the next incarnation of one node; the others go on."""

    node_index: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Restart:
    """End what is left of this attempt and start all nodes anew."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The run is over."""

    reason: Reason
    detail: str = ""


Action = Wait | Replace | Restart | Finish


def decide_action(
    plan: LaunchPlan,
    observation: Observation,
    *,
    replaced: Mapping[int, int],
    since_first_exit_s: float,
) -> Action:
    """The next step of a run.

    ``replaced`` counts the replacements of each node index so far; ``since_first_exit_s`` is how
    long ago the first node of the present situation was seen to have ended.
    """
    ended = [
        node for node in observation.nodes if node.state in (NodeState.EXITED, NodeState.MISSING)
    ]
    bad = [node for node in ended if node.exit_code != 0]
    if not ended:
        return Wait()
    if not bad:
        return _decide_finished(plan, ended, since_first_exit_s)
    if plan.is_elastic and (action := _decide_elastic(plan, observation, bad, replaced)):
        return action
    if len(ended) < len(observation.nodes) and since_first_exit_s < FALL_S:
        return Wait()
    return _decide_failed(plan, bad)


def is_lost(node: NodeObservation) -> bool:
    """Whether a node was taken from outside: killed by a signal, or gone without a word."""
    return node.state is NodeState.MISSING or (node.exit_code or 0) > 128


def _decide_finished(
    plan: LaunchPlan, ended: list[NodeObservation], since_first_exit_s: float
) -> Action:
    # Elastic: a node that was about to join may never come back from a finished rendezvous.
    finished = len(ended) == len(plan.nodes) or (plan.is_elastic and since_first_exit_s > FINISH_S)
    return Finish(reason=Reason.COMPLETED) if finished else Wait()


def _decide_elastic(
    plan: LaunchPlan,
    observation: Observation,
    bad: list[NodeObservation],
    replaced: Mapping[int, int],
) -> Action | None:
    """Replaces a lost node while the store lives; None where only a restart helps."""
    if any(node.state is NodeState.EXITED and node.exit_code == 0 for node in observation.nodes):
        return None
    if any(not is_lost(node) or _is_store_host(plan, node.node_index) for node in bad):
        return None
    for node in bad:
        if replaced.get(node.node_index, 0) < plan.max_restarts:
            return Replace(node_index=node.node_index, why=describe(node))
    alive = len(observation.nodes) - len(bad)
    return Wait() if alive >= plan.nodes[0].min_nodes else None


def _decide_failed(plan: LaunchPlan, bad: list[NodeObservation]) -> Action:
    lost = [node for node in bad if is_lost(node)]
    worst = (lost or bad)[0]
    # Inside torchrun's own restarts a failing script has used up max_restarts already.
    restarts_left = plan.attempt < plan.max_restarts
    launcher_restarts = bool(lost) or not isinstance(plan.nodes[0].rendezvous, Elastic)
    if restarts_left and launcher_restarts:
        return Restart(why=describe(worst))
    if worst.out_of_memory:
        return Finish(reason=Reason.OUT_OF_MEMORY, detail=describe(worst))
    if lost:
        return Finish(reason=Reason.NODE_LOST, detail=describe(worst))
    used_up = plan.max_restarts > 0
    reason = Reason.RESTARTS_EXHAUSTED if used_up else Reason.TRAINING_FAILED
    # The report names the rank, which says more than the exit code of the first node to be seen;
    # only what the target itself has to say is kept.
    return Finish(reason=reason, detail=worst.detail)


def describe(node: NodeObservation) -> str:
    """One node's ending in words."""
    if node.state is NodeState.MISSING:
        return f"node {node.node_index} is gone"
    why = "out of memory" if node.out_of_memory else node.detail
    return f"node {node.node_index} ended with exit code {node.exit_code}" + (
        f" ({why})" if why else ""
    )


def _is_store_host(plan: LaunchPlan, node_index: int) -> bool:
    rendezvous = plan.nodes[node_index].rendezvous
    return isinstance(rendezvous, Elastic) and rendezvous.is_host
