"""Why a run ends, or what it needs next: whether a lost node is replaced or all start again, how
often, after which pause. Judged here alone. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.agent import disk
from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM, Cause, NodeState, cause_of_exit_code
from launcher.contract.ending import Ending, NodeOutcome, WorkerEnd
from launcher.contract.errors import ExitCode, LauncherError, name_exit_code
from launcher.contract.node_plan import Elastic
from launcher.follow.target import NodeObservation, Observation
from launcher.job.values import render_bytes
from launcher.plan.launch_plan import LaunchPlan

_NO_MODULE = re.compile(r"/\S.*: (No module named [^\s)]+|Error while finding module .+)\)?")
"""What ``python -m`` prints if it cannot start the module."""
_OF_WORKERS = (Cause.TRAINING_FAILED, Cause.RESTARTS_EXHAUSTED, Cause.BAD_INPUT)
"""Causes of runs that a worker has ended."""
FOUND_LATER = "found after its launcher had gone"
UNHEARD = "its hosts heard no launcher for 10 s, and ended it; one that wakes soon starts it again"
FOLDER_REMOVED = Ending(cause=Cause.STOP_REQUESTED, detail="its folder was removed while it ran")
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


# -- what a run needs next, by its nodes ------------------------------------------------------


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


def judge_closed(action: Action, why: str) -> Action:
    """The next step where no node can be started any more for the reason ``why``, if it is one.

    What is worth a retry, also an end by a lost node, has come of that.
    """
    is_own_end = isinstance(action, Ending) and action.exit_code < RETRY_FROM
    if not why or is_own_end or isinstance(action, Wait):
        return action
    return Ending(cause=Cause.NODE_LOST, detail=why)


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
    return judge_node(plan, worst)


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
        return Wait() if live and since_exit_s < FALL_S else judge_node(plan, permanent[0])
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
            return Replace(node_index=node.node_index, why=describe(node, by_agent=True))
    if live >= plan.min_nodes or since_exit_s < FALL_S:
        return Wait()
    return judge_node(plan, away[0])


def _restart_all(plan: LaunchPlan, away: list[NodeObservation]) -> Action:
    worst = min(away, key=lambda node: _replacements_left(plan, node))
    left = _replacements_left(plan, worst)
    why = describe(worst, by_agent=True)
    return Restart(why=why, left=left) if left > 0 else judge_node(plan, worst)


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


# -- by a node, as its target reports it -----------------------------------------------------------


def is_lost(node: NodeObservation) -> bool:
    """Whether a node was taken from outside: killed by a signal, or gone without a word."""
    return node.state is NodeState.MISSING or node.code > RETRY_FROM


def is_permanent(node: NodeObservation) -> bool:
    """Whether its exit code says that another start would end alike."""
    return 0 < node.code < RETRY_FROM


def judge_node(plan: LaunchPlan, node: NodeObservation) -> Ending:
    """Why a run ends that cannot go on without this node."""
    by_agents = _uses_roster(plan)
    words = describe(node, by_agent=by_agents)
    if node.out_of_memory:
        return Ending(cause=Cause.OUT_OF_MEMORY, detail=words)
    if is_permanent(node):
        used_up = Cause.RESTARTS_EXHAUSTED if plan.max_restarts > 0 else Cause.TRAINING_FAILED
        cause = cause_of_exit_code(node.code) if by_agents else used_up
        # The node's own report says more than its exit code.
        return Ending(cause=cause, detail=node.detail)
    # A signal's code does not say why, but one that an agent chose does.
    is_own = node.code >= ExitCode.RENDEZVOUS_UNREACHABLE and node.code in set(ExitCode)
    cause = cause_of_exit_code(node.code) if plan.agent and is_own else Cause.NODE_LOST
    return Ending(cause=cause, detail=words)


def describe(node: NodeObservation, *, by_agent: bool = False) -> str:
    """One node's ending in words; that of an agent with the meaning of its exit code."""
    if node.is_alive:
        return f"node {node.node_index} still lives though the run is over: it may be frozen"
    if node.state is NodeState.MISSING:
        return f"node {node.node_index} is gone" + (f": {node.detail}" if node.detail else "")
    means = cause_of_exit_code(node.code) if by_agent and node.code >= RETRY_FROM else ""
    why = "out of memory" if node.out_of_memory else node.detail or means
    words = f"node {node.node_index} ended with exit code {name_exit_code(node.exit_code)}"
    return f"{words} ({why})" if why else words


def judge_left(plan: LaunchPlan, observation: Observation) -> Ending:
    """Why a run ended whose launcher had gone, from what is left of its nodes."""
    codes = [node.exit_code for node in observation.nodes]
    if all(code == 0 for code in codes):
        return Ending(cause=Cause.COMPLETED)
    if any(node.detail == protocol.LAUNCHER_GONE for node in observation.nodes):
        return Ending(cause=Cause.LAUNCHER_LOST, detail=UNHEARD)
    if all(code is None for code in codes):
        lost = "its launcher died, and its processes with it"
        return Ending(cause=Cause.LAUNCHER_LOST, detail=lost)
    action = decide_action(plan, observation, replaced={}, since_first_exit_s=math.inf)
    return Ending(cause=action.cause if isinstance(action, Ending) else Cause.LAUNCHER_LOST)


def judge_found(ending: Ending, *, is_stop_requested: bool) -> Ending:
    """Why a run ended whose end a later command found, after its launcher had gone.

    ``ending`` is what the nodes say. ``is_stop_requested``: somebody had asked the run to stop.
    """
    if ending.cause is Cause.LAUNCHER_LOST and is_stop_requested:
        return Ending(cause=Cause.STOP_REQUESTED)
    return replace(ending, detail=ending.detail or FOUND_LATER)


def judge_error(error: BaseException) -> Ending:
    """Why a run ended by what its launcher raised."""
    cause = Cause.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Cause.LAUNCHER_LOST
    if isinstance(error, LauncherError):
        cause = cause_of_exit_code(error.exit_code)
    if disk.is_full(error):
        cause = Cause.DISK_FULL
    return Ending(cause=cause, detail=str(error).partition("\n")[0])


# -- by the parts that a scheduler ran -------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Part:
    """A pod, or one start of a job, whose end only its scheduler has seen.

    ``words`` describe the end to a person. ``cause`` is set if the scheduler, or whoever asked for
    the end, names it. ``exit_code`` is as in a shell, None if there is none. ``outcome`` is the
    agent's. ``ended_at`` is in seconds since the epoch.
    """

    words: str = ""
    cause: Cause | None = None
    exit_code: int | None = None
    outcome: NodeOutcome | None = None
    ended_at: float = math.inf


def decide_parts(
    nodes: Iterable[NodeOutcome], over: Sequence[Part], *, still_running: int, min_nodes: int
) -> Ending | None:
    """How a run ended, by the outcomes of its nodes and by its parts that are ``over``.

    ``still_running`` is the number of the other parts. Returns None while the run goes on.
    """
    if any(outcome.cause is Cause.COMPLETED and _saw_the_end(outcome) for outcome in nodes):
        return Ending(cause=Cause.COMPLETED)
    codes = [part.exit_code or 0 for part in over]
    has_failed = any(0 < code < RETRY_FROM for code in codes)
    too_few = still_running < min_nodes and any(codes)
    return judge_parts(over) if has_failed or too_few or not still_running else None


def judge_parts(parts: Iterable[Part]) -> Ending:
    """Why a run ended, by the part that failed first.

    A part that ran out of memory comes before all others, because it ends others too. Then come
    parts whose failure would happen again, then those that did not fail because of another part.
    """

    def order(part: Part) -> tuple[bool, bool, bool, bool, float]:
        end, first = judge_part(part), part.outcome.first if part.outcome else None
        after = (first.is_collateral, first.failed_at) if first else (False, part.ended_at)
        has_memory = end.cause is not Cause.OUT_OF_MEMORY
        return end.exit_code == 0, has_memory, end.exit_code >= RETRY_FROM, *after

    return judge_part(min(parts, key=order))


def judge_part(part: Part) -> Ending:
    """How a part ended: by its own cause, else by its agent's outcome, else by its exit code."""
    reported = part.outcome.cause if part.outcome else Cause.COMPLETED
    if part.cause is not None:
        # A scheduler that answers was asked for something that it cannot start.
        is_wrong = part.cause.of is Cause.TARGET_UNREACHABLE
        cause = Cause.BAD_INPUT if is_wrong else part.cause.of
    elif reported is Cause.COMPLETED:
        # What was killed after its agent had reported success did not complete.
        cause = Cause.NODE_LOST if part.exit_code is None else cause_of_exit_code(part.exit_code)
    else:
        cause = reported
    return Ending(cause=cause, detail=part.words)


# -- by all that is known --------------------------------------------------------------------------


def judge_run(
    observed: Ending,
    nodes: Sequence[NodeOutcome],
    first: WorkerEnd | None,
    memory_bytes: int | None = None,
) -> Ending:
    """Why a run ended, from all that is known of it.

    ``observed`` is the driver's ending, ``nodes`` are the agents' outcomes, ``first`` is the worker
    that failed first. Each source knows more than the one before. ``memory_bytes`` is the memory
    limit of a node.
    """
    end = _by_nodes(observed, nodes, first)
    wrong = _find_bad_input(first) if first and end.cause in _OF_WORKERS else None
    if wrong is not None:
        end = replace(end, cause=Cause.BAD_INPUT, detail=wrong)
    if memory_bytes and Cause.OUT_OF_MEMORY in (end.cause, first.cause if first else None):
        fix = f"--set resources.memory={render_bytes(2 * memory_bytes)}"
        limit = f"the limit is {render_bytes(memory_bytes)}; fix: {fix}"
        return replace(end, detail=f"{limit}; {end.detail}" if end.detail else limit)
    return end


def _by_nodes(observed: Ending, nodes: Sequence[NodeOutcome], first: WorkerEnd | None) -> Ending:
    """The ending with the cause of the node where ``first`` ran, because several causes share one
    exit code. If that node left no outcome, the node that ended first gives the cause.
    """
    first_node = first.node_index if first else None

    def order(node: NodeOutcome) -> tuple[bool, float]:
        return node.node_index != first_node, node.finished_at

    same = sorted((node for node in nodes if node.exit_code == observed.cause.exit_code), key=order)
    if observed.cause is not Cause.TRAINING_FAILED:
        same = [node for node in same if node.cause is observed.cause]
    if not same or not _saw_the_end(same[0]):
        return observed
    node = same[0]
    if node.cause is Cause.DISK_FULL:
        # The node names the disk, which an exit code does not.
        return replace(observed, detail=f"node {node.node_index}: {node.detail}")
    # What the node says of its end tells more than that somebody found it.
    detail = (
        node.detail or observed.detail
        if observed.detail == FOUND_LATER
        else observed.detail or node.detail
    )
    return replace(observed, cause=node.cause, detail=detail)


def _saw_the_end(node: NodeOutcome) -> bool:
    return node.detail != protocol.OTHERS_GO_ON


def _find_bad_input(first: WorkerEnd) -> str | None:
    """What the worker says of input that the user has to correct; None if there is none.

    Python ends with 2 for a missing script, as argparse does for bad arguments. For a missing
    module it ends with 1, and one line on stderr.
    """
    last = first.last_words
    if missing := _NO_MODULE.fullmatch(last):
        return f"rank {first.rank}: {missing[1]}"
    if first.exit_code != ExitCode.BAD_INPUT:
        return None
    return f"rank {first.rank}: {last}" if last else ""
