"""Decides who belongs to the group: when it forms and with whom, who is refused, when new nodes
come in, when restarts are used up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from launcher.agent.membership.group import (
    EXHAUSTED,
    FAILED,
    FENCED_OUT,
    FINISHED,
    STRANDED,
    GroupState,
    Join,
    Member,
    RoundCause,
)

REGROUP_LIMIT_S = 60.0
"""How long a later round waits for a living member whose workers are slow to stop."""
SUCCESSOR_CALL_S = 2.0
"""The longest last call after a coordinator was lost: all nodes come at about the same time."""
TAKING = -1


# -- events --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Gone:
    """A node is no longer there, or has finished."""

    name: str
    cause: RoundCause


@dataclass(frozen=True)
class Close:
    """The run is over, for all nodes."""

    reason: str


@dataclass(frozen=True)
class Admit:
    """The running group has committed: the nodes that wait may come in."""


@dataclass(frozen=True)
class Heals:
    """The workers of a node go on in the same processes when the group changes."""

    name: str


@dataclass(frozen=True)
class Generation:
    """The answer to ``TakeGeneration``; 0 where none could be taken, and ``error`` says why."""

    number: int
    error: str = ""


Event = Join | Gone | Close | Admit | Heals | Generation


# -- actions -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TakeGeneration:
    """Take the next generation from shared storage; may be slow, answered by ``Generation``."""


@dataclass(frozen=True)
class Refuse:
    """A node's rendezvous fails: ``closed``, ``timeout``, ``replaced`` or ``state``."""

    name: str
    kind: str
    text: str


@dataclass(frozen=True)
class Tell:
    """Tell these nodes the membership."""

    names: frozenset[str]


Action = TakeGeneration | Refuse | Tell


def step(
    group: GroupState, events: Iterable[Event], now: float
) -> tuple[GroupState, tuple[Action, ...]]:
    """The group after some events and at this time, and what has to be done."""
    # Copied once, and changed in place below: with thousands of nodes this is most of the work.
    waiting, newest, gone = {**group.waiting}, {**group.newest}, {**group.gone}
    group, actions = replace(group, waiting=waiting, newest=newest, gone=gone), list[Action]()
    for event in events:
        _apply(group, event, now, actions)
    _judge(group, now)
    _seal(group, now, actions)
    actions += _refuse_late(group, now)
    group.heals = group.sealed and group.working() <= group.healing
    for action in actions:
        if isinstance(action, Refuse):
            group.waiting.pop(action.name, None)
    return group, tuple(actions)


# -- taking in -----------------------------------------------------------------------------------
def _apply(group: GroupState, event: Event, now: float, actions: list[Action]) -> None:
    match event:
        case Join():
            _join(group, event, now, actions)
        case Gone(name, cause):
            _strike(group, name, cause, now)
        case Close(reason) if not group.closed or (group.closed, reason) == (FINISHED, FAILED):
            group.closed = reason
        case Admit() if group.newcomers:
            _open(group, RoundCause.JOINED, now)
        case Heals(name):
            group.healing = group.healing | {name}
        case Generation(number, error):
            group.taken = number if number > group.generation else 0
            if error:
                actions += [Refuse(name, "state", error) for name in group.waiting]


def _join(group: GroupState, join: Join, now: float, actions: list[Action]) -> None:
    member, last = join.member, join.last
    name, index = member.name, member.node_index
    if last.generation > group.generation and group.members:
        # This coordinator was left behind.
        group.closed = FENCED_OUT
    elif last.generation > group.generation:
        group.generation, group.majority_of = last.generation, last.majority_of
        group.faults, group.finished = last.faults, last.finished
    text = f"another node came with node_index {index}: each node needs its own"
    if (why := group.gone.pop(name, RoundCause.LOST)) is not RoundCause.LOST:
        group.gone[name] = why
        actions += [Refuse(name, "replaced", text)] if why is RoundCause.REPLACED else []
        return
    if group.sealed and not group.closed and name in group.working():
        if last.generation < group.generation:
            # Its connection was cut when it was told.
            actions.append(Tell(frozenset({name})))
            return
        _open(group, RoundCause.FAULT, now)
    other = group.newest.get(index, name)
    if other != name and (other in group.waiting or other in group.working()):
        actions.append(Refuse(other, "replaced", text))
        _strike(group, other, RoundCause.REPLACED, now)
    group.waiting[name] = replace(join, since=now)
    group.newest[index] = name
    group.arrived_at = now
    group.refuse_at = min(group.refuse_at, now + join.limit_s)


def _strike(group: GroupState, name: str, cause: RoundCause, now: float) -> None:
    """Takes a node out of the group: opens a round, or corrects the cause of the open one."""
    group.waiting.pop(name, None)
    if group.gone.get(name, RoundCause.LOST) is not RoundCause.LOST:
        return
    did_work = name in group.working()
    group.gone[name] = cause
    group.finished += cause is RoundCause.FINISHED
    group.majority_of -= did_work and cause in (RoundCause.LEFT, RoundCause.FINISHED)
    if not did_work or group.closed or cause is RoundCause.FINISHED:
        return
    if group.sealed:
        _open(group, cause, now)
    # Workers have failed because of the loss, or cannot go on until newcomers are let in.
    group.cause = cause


def _open(group: GroupState, cause: RoundCause, now: float) -> None:
    """The running group has to form again."""
    if not group.closed:
        group.sealed, group.cause, group.newcomers = False, cause, 0
        group.phase_at = now


# -- what follows ----------------------------------------------------------------------------------
def _judge(group: GroupState, now: float) -> None:
    """Whether the run is over, and whether newcomers are announced."""
    group.closed = group.closed or _end_of(group, now)
    # Once a member has finished, the others are near their end too and are not restarted.
    gone = (group.gone.get(member.name) for member in group.members if group.finished)
    ending = RoundCause.FINISHED in gone
    # Announced only when calm: for newcomers the training has to commit and end.
    calm = now - group.grown_at >= group.rules.growth_pause_s
    can_grow = group.sealed and not group.closed and calm and not ending
    newcomers = min(group.room - len(group.members), len(group.waiting))
    group.newcomers = max(0, newcomers) if can_grow else 0


def _end_of(group: GroupState, now: float) -> str:
    """Why no further round can or need be formed; empty where one may."""
    if not group.finished:
        return ""
    at_work = group.working()
    if group.members and not at_work and group.finished >= group.rules.min_nodes:
        return FINISHED
    nobody_comes = not at_work and now - group.phase_at >= group.rules.join_timeout_s
    may_form = group.room >= group.rules.min_nodes and not nobody_comes
    return "" if group.sealed or may_form else STRANDED


# -- sealing ---------------------------------------------------------------------------------------
def _seal(group: GroupState, now: float, actions: list[Action]) -> None:
    rules = group.rules
    members = () if group.sealed or group.closed else _choose(group, now)
    if not members:
        return
    # First: a coordinator that stood still while the others went on elsewhere judges nothing.
    if rules.fence_dir and group.taken <= 0:
        actions += [] if group.taken == TAKING else [TakeGeneration()]
        group.taken = TAKING
        return
    is_fault = group.cause is RoundCause.FAULT
    if is_fault and 0 <= rules.max_restarts <= group.faults:
        group.closed = EXHAUSTED
        return
    for member in members:
        del group.waiting[member.name]
    group.sealed, group.members, group.majority_of = True, members, len(members)
    group.generation, group.taken = group.taken or group.generation + 1, 0
    group.faults += is_fault
    group.grown_at = now if group.cause is RoundCause.JOINED else group.grown_at
    actions.append(Tell(frozenset(member.name for member in members)))


def _choose(group: GroupState, now: float) -> tuple[Member, ...]:
    """Who is sealed now, in order of rank; nobody while the round has to wait."""
    rules = group.rules
    if min(len(group.waiting), group.room) < rules.min_nodes:
        return ()
    survivors = group.working()
    here = sorted(group.waiting, key=lambda name: name not in survivors)
    chosen = [group.waiting[name].member for name in here[: group.room]]
    if not _is_quorate(group, len(chosen)):
        return ()
    if group.members:
        missing = len(survivors) - _come_again(group)
        is_late = now - group.phase_at >= REGROUP_LIMIT_S
    else:
        # The member beside which the last coordinator ran is most likely gone with it.
        expected = group.majority_of - 1 if group.generation else rules.max_nodes
        missing = min(expected - _come_again(group), group.room - len(chosen))
        last_call_s = min(rules.last_call_s, SUCCESSOR_CALL_S if group.generation else math.inf)
        is_late = now - group.arrived_at >= last_call_s
    # By node index, so that ranks survive restarts.
    chosen.sort(key=lambda member: member.node_index)
    return tuple(chosen) if missing <= 0 or is_late else ()


def _come_again(group: GroupState) -> int:
    """How many of the waiting nodes were in the last membership, wherever that was formed."""
    if group.members:
        return len(group.working() & group.waiting.keys())
    return sum(0 < join.last.generation == group.generation for join in group.waiting.values())


def _is_quorate(group: GroupState, chosen: int) -> bool:
    """Whether the nodes are enough to form a group; with fencing they always are.

    Without: more than half of the last membership that did not leave or finish, or so many nodes,
    replacements among them, that the absent ones cannot form a group.
    """
    if group.rules.fence_dir or group.rules.rules_out_another(chosen):
        return True
    return group.generation == 0 or 2 * _come_again(group) > group.majority_of


# -- refusing --------------------------------------------------------------------------------------
def _refuse_late(group: GroupState, now: float) -> list[Refuse]:
    if group.closed:
        text = f"the run is closed: {group.closed}"
        return [Refuse(name, "closed", text) for name in group.waiting]
    # Waiting beside a running group does not count.
    if group.sealed or now < group.refuse_at:
        return []
    deadlines = {
        name: max(join.since, group.phase_at) + join.limit_s for name, join in group.waiting.items()
    }
    group.refuse_at = min((at for at in deadlines.values() if at > now), default=math.inf)
    late = [name for name, at in deadlines.items() if at <= now]
    return [Refuse(name, "timeout", _why_not(group, group.waiting[name].limit_s)) for name in late]


def _why_not(group: GroupState, limit_s: float) -> str:
    rules, here = group.rules, len(group.waiting)
    since = f"no membership was formed within {limit_s:g} s"
    if here < rules.min_nodes:
        return f"{since}: {here} of at least {rules.min_nodes} nodes are here"
    if _is_quorate(group, here):
        return since
    return (
        f"{since}: no majority of the last {group.majority_of} nodes is here "
        f"({_come_again(group)}), and no shared checkpoint folder fences the run"
    )
