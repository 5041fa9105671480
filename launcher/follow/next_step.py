"""What a run needs next, decided from its plan and what its target reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import ExitCode
from launcher.contract.node_plan import Elastic
from launcher.contract.states import NodeState
from launcher.follow.endings import (
    describe,
    describe_agent,
    is_lost,
    is_permanent,
    judge_agent,
    judge_torchrun,
)
from launcher.follow.target import NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan

FALL_S = 5.0
"""How long the other nodes get to fail too, so that the report can name the first cause."""
FINISH_S = 60.0
"""How long the others may take once one elastic node has finished: agents leave at a barrier."""
MAX_REPLACEMENTS = 16
"""How often one run replaces the same node while the agents go on without it. A replacement uses
up no restart, but a node that can never come back must end the run at some time."""
LONGEST_PAUSE_S = 30.0
"""The longest wait between two starts of the same node: a node that fails at once must not use up
its replacements before the cause is gone."""
STEADY_S = 60.0
"""A node that ran this long did not fail at once: its next pause is the shortest again."""


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
    """End what is left of this attempt and restart all nodes; ``left`` includes this restart."""

    why: str
    left: int


Action = Wait | Replace | Restart | Ending


def decide_action(
    plan: LaunchPlan,
    observation: Observation,
    *,
    replaced: Mapping[int, int],
    since_first_exit_s: float,
    working: frozenset[int] = frozenset(),
    left_early: frozenset[int] = frozenset(),
) -> Action:
    """The next step of a run, from the nodes that it should have now.

    ``replaced`` counts the replacements of each node so far; ``since_first_exit_s`` is the time
    since the first of the present nodes was seen to have ended; ``working`` are the nodes whose
    present incarnation has started workers; ``left_early`` are the nodes that finished but left
    before the run was over.
    """
    late = since_first_exit_s > FINISH_S and _nobody_works(plan, observation, working, left_early)
    ended = [node for node in observation.nodes if not node.is_alive]
    bad = [node for node in ended if node.exit_code != 0]
    if not ended:
        return Wait()
    if not bad:
        if len(ended) == len(observation.nodes):
            return Ending(cause=Cause.COMPLETED)
        return _decide_left_over(plan, observation) if late else Wait()
    if _uses_roster(plan):
        return _decide_agents(plan, observation, since_first_exit_s, late=late)
    if plan.is_elastic and (action := _decide_elastic(plan, observation, bad, replaced)):
        return action
    if len(ended) < len(observation.nodes) and since_first_exit_s < FALL_S:
        return Wait()
    return _decide_failed(plan, bad)


def pause_before_replacing_s(replaced: int) -> float:
    """How long after its last start a node may start again, after ``replaced`` replacements."""
    return min(LONGEST_PAUSE_S, 2.0 ** (replaced - 1)) if replaced else 0.0


def _nobody_works(
    plan: LaunchPlan,
    observation: Observation,
    working: frozenset[int],
    left_early: frozenset[int],
) -> bool:
    """Whether the living nodes have nothing left to do, now that another node has finished.

    Under the agent a node ends once the whole run has finished, so who lives on was about to join,
    or is frozen. That does not hold for ``left_early``, nodes that ended before the run. Under
    torchrun a node ends 300 s after its own work, while others may still compute.
    """
    finished = [node.node_index for node in observation.nodes if node.exit_code == 0]
    if _uses_roster(plan) and not left_early.issuperset(finished):
        return True
    return not any(n.node_index in working for n in observation.nodes if n.is_alive)


def _decide_elastic(
    plan: LaunchPlan,
    observation: Observation,
    bad: list[NodeObservation],
    replaced: Mapping[int, int],
) -> Action | None:
    """Replaces a lost node while the store lives; None if only a restart helps."""
    if any(node.state is NodeState.EXITED and node.exit_code == 0 for node in observation.nodes):
        return None
    if any(not is_lost(node) or _is_store_host(plan, node.node_index) for node in bad):
        return None
    for node in bad:
        if replaced.get(node.node_index, 0) < plan.max_restarts:
            return Replace(node_index=node.node_index, why=describe(node))
    alive = len(observation.nodes) - len(bad)
    return Wait() if alive >= plan.min_nodes else None


def _decide_failed(plan: LaunchPlan, bad: list[NodeObservation]) -> Action:
    lost = [node for node in bad if is_lost(node)]
    worst = (lost or bad)[0]
    # torchrun itself has already restarted a failing script ``max_restarts`` times.
    restarts_left = plan.attempt < plan.max_restarts
    launcher_restarts = bool(lost) or not isinstance(plan.nodes[0].rendezvous, Elastic)
    if restarts_left and launcher_restarts:
        return Restart(why=describe(worst), left=plan.max_restarts - plan.attempt)
    return judge_torchrun(plan, worst)


# -- nodes under the agent: exit codes are those of ``contract.causes`` ------------------------


def _uses_roster(plan: LaunchPlan) -> bool:
    """Whether agents run the nodes and go on without a lost node, unlike a static group."""
    return plan.agent is not None and isinstance(plan.nodes[0].rendezvous, Elastic)


def _decide_agents(
    plan: LaunchPlan, observation: Observation, since_exit_s: float, *, late: bool
) -> Action:
    """At least one node has failed. The agents apply ``max_restarts`` themselves."""
    live = [node for node in observation.nodes if node.is_alive]
    bad = [node for node in observation.nodes if not node.is_alive and node.exit_code != 0]
    if permanent := [node for node in bad if is_permanent(node)]:
        return Wait() if live and since_exit_s < FALL_S else judge_agent(permanent[0])
    finished = len(observation.nodes) - len(live) - len(bad)
    closed = [node for node in bad if node.exit_code == ExitCode.RENDEZVOUS_CLOSED]
    lost = [node for node in bad if node not in closed]
    if finished and live:
        return _decide_left_over(plan, observation) if late else Wait()
    if finished:
        # A newcomer that the roster refused because all had finished has ended well too.
        if not bad or finished >= plan.min_nodes:
            return Ending(cause=Cause.COMPLETED)
        return _restart_all(plan, bad)
    if not live:
        return _restart_all(plan, lost or closed)
    # The rendezvous closes once a node ends. A node that found it closed is lost if others live on.
    away = bad if since_exit_s > FINISH_S else lost
    return _decide_lost(plan, away, len(live), since_exit_s) if away else Wait()


def _decide_left_over(plan: LaunchPlan, observation: Observation) -> Action:
    """A node has finished, and the living nodes have no work: they are frozen or came too late."""
    finished = sum(node.exit_code == 0 for node in observation.nodes)
    if finished >= plan.min_nodes:
        return Ending(cause=Cause.COMPLETED)
    if _uses_roster(plan):
        away = [node for node in observation.nodes if node.exit_code != 0]
        return _restart_all(plan, sorted(away, key=lambda node: not node.is_alive))
    return Ending(cause=Cause.COMPLETED) if plan.is_elastic else Wait()


def _decide_lost(
    plan: LaunchPlan, away: list[NodeObservation], live: int, since_exit_s: float
) -> Action:
    """Replaces lost nodes: the others keep the rendezvous, where the next incarnations join."""
    for node in away:
        if _replacements_left(plan, node) > 0:
            return Replace(node_index=node.node_index, why=describe_agent(node))
    if live >= plan.min_nodes or since_exit_s < FALL_S:
        return Wait()
    return judge_agent(away[0])


def _restart_all(plan: LaunchPlan, away: list[NodeObservation]) -> Action:
    worst = min(away, key=lambda node: _replacements_left(plan, node))
    left = _replacements_left(plan, worst)
    return Restart(why=describe_agent(worst), left=left) if left > 0 else judge_agent(worst)


def _replacements_left(plan: LaunchPlan, node: NodeObservation) -> int:
    """How often a node may still be replaced.

    A node that ran out of memory will do so again, so ``max_restarts`` limits it too. After a full
    disk no replacement helps: it would find the same disk.
    """
    if node.exit_code == ExitCode.DISK_FULL:
        return 0
    limit = min(plan.max_restarts, MAX_REPLACEMENTS) if node.out_of_memory else MAX_REPLACEMENTS
    return limit - plan.nodes[node.node_index].incarnation


def _is_store_host(plan: LaunchPlan, node_index: int) -> bool:
    rendezvous = plan.nodes[node_index].rendezvous
    return isinstance(rendezvous, Elastic) and rendezvous.is_host
