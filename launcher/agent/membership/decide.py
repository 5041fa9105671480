"""Decides who belongs to the group: ``(group, events, now) -> (group, actions)``. Pure.

    FORMING(n) --seal--> SEALED(n) --open--> FORMING(n + 1) --> ...      any --close--> CLOSED

``now`` is the coordinator's own monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from launcher.agent.membership.group import (
    EXHAUSTED,
    FENCED_OUT,
    FINISHED,
    STRANDED,
    Cause,
    GroupState,
    NodeEntry,
    Phase,
    counted,
    waiting,
    working,
)
from launcher.agent.membership.settings import NONE, Last, Member


# -- events --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Join:
    """A node asks for a rendezvous, for the first time or again, for ``limit_s`` at most.

    ``after`` is the epoch of the last membership that it was told here, 0 before the first, and
    ``last`` what it knows of another coordinator's.
    """

    member: Member
    limit_s: float
    after: int = 0
    last: Last = NONE


@dataclass(frozen=True)
class Gone:
    """A node is no longer there: it was lost, or has left on purpose."""

    name: str
    cause: Cause


@dataclass(frozen=True)
class Finish:
    """All workers of a node have succeeded."""

    name: str


@dataclass(frozen=True)
class Close:
    """The run is over, for all nodes."""

    reason: str


@dataclass(frozen=True)
class Admit:
    """The running group has committed: the nodes that wait may come in."""


@dataclass(frozen=True)
class Generation:
    """The answer to ``TakeGeneration``; 0 where none could be taken, and ``error`` says why."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class Dead:
    """A member around the last coordinator is known to be dead."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Join | Gone | Finish | Close | Admit | Generation | Dead | Tick


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
class TellAgain:
    """A member was not told the membership: its connection was cut at that moment."""

    name: str


Action = TakeGeneration | Refuse | TellAgain


def step(
    group: GroupState, events: Iterable[Event], now: float
) -> tuple[GroupState, tuple[Action, ...]]:
    """The group after some events, and what has to be done.

    That the phase, the epoch or the members have changed is told to the nodes by whoever calls.
    """
    actions: list[Action] = []
    for event in events:
        group, more = _take_in(group, event, now)
        actions += more
    group = _judge(group, now)
    group, more = _seal(group, now)
    actions += (*more, *_refuse_late(group, now))
    refused = {one.name for one in actions if isinstance(one, Refuse)}
    if refused & group.nodes.keys():
        nodes = {n: replace(x, waits=x.waits and n not in refused) for n, x in group.nodes.items()}
        group = replace(group, nodes=nodes)
    return group, tuple(actions)


# -- taking in -----------------------------------------------------------------------------------
def _take_in(group: GroupState, event: Event, now: float) -> tuple[GroupState, tuple[Action, ...]]:
    match event:
        case Join():
            return _join(group, event, now)
        case Gone(name, cause):
            nodes = {n: node for n, node in group.nodes.items() if n != name}
            return _strike(replace(group, nodes=nodes), {name: cause}, now), ()
        case Finish(name):
            return replace(group, finished=group.finished | {name}), ()
        case Close(reason) if group.phase is not Phase.CLOSED:
            return _close(group, reason), ()
        case Close(reason) if group.closed == FINISHED != reason:
            return replace(group, closed=reason), ()
        case Admit():
            return replace(group, admitted=group.newcomers > 0), ()
        case Generation(number, error):
            if number <= max(group.generation, 0):
                waits = waiting(group) if error else ()
                refused = tuple(Refuse(member.name, "state", error) for member in waits)
                return replace(group, taking=False, taken=0), refused
            return replace(group, taking=False, taken=number), ()
        case Dead():
            return replace(group, dead=group.dead + 1), ()
    return group, ()


def _join(group: GroupState, join: Join, now: float) -> tuple[GroupState, tuple[Action, ...]]:
    node = NodeEntry(
        member=join.member, waits=True, since=now, limit_s=join.limit_s, last=join.last.generation
    )
    name, is_member = node.member.name, join.member.name in {one.name for one in working(group)}
    if group.phase is Phase.SEALED and is_member and join.after < group.epoch:
        return group, (TellAgain(name),)
    group = _learn(group, join.last)
    if group.phase is Phase.CLOSED:
        return group, (Refuse(name, "closed", f"the run is closed: {group.closed}"),)
    text = f"another node came with node_index {node.member.node_index}: each node needs its own"
    if name in group.replaced:
        return group, (Refuse(name, "replaced", text),)
    older = [
        other
        for other, there in group.nodes.items()
        if there.member.node_index == node.member.node_index
        and other not in (name, *group.finished)
    ]
    refused = tuple(Refuse(other, "replaced", text) for other in older)
    nodes = {other: there for other, there in group.nodes.items() if other not in older}
    group = replace(group, nodes=nodes, replaced=group.replaced.union(older))
    group = _strike(group, dict.fromkeys(older, Cause.REPLACED), now)
    if group.phase is Phase.SEALED and is_member:
        group = _open(group, Cause.FAULT, now)
    # At its place in the order of arrival, if it was there before.
    group = replace(group, nodes={**group.nodes, name: node}, arrived_at=now)
    return replace(group, waiting_at=now) if group.phase is Phase.SEALED else group, refused


def _learn(group: GroupState, last: Last) -> GroupState:
    """A node comes from another coordinator: this one follows it, or was left behind by it."""
    if last.generation <= max(group.generation, group.last.generation):
        return group
    if group.members:
        return _close(group, FENCED_OUT)
    return replace(
        group, last=last, generation=last.generation, faults=max(group.faults, last.faults)
    )


def _strike(group: GroupState, struck: dict[str, Cause], now: float) -> GroupState:
    """Members were lost or left: a round opens, or the one that is open gets its true cause."""
    at_work = {member.name for member in working(group)}
    struck = {name: cause for name, cause in struck.items() if name in at_work}
    if not struck or group.phase is Phase.CLOSED:
        return group
    cause = next(iter(struck.values()))
    if group.phase is Phase.SEALED:
        group = _open(group, cause, now)
    elif group.cause is Cause.FAULT:
        # The workers have failed because of the loss.
        group = replace(group, cause=cause)
    return replace(group, gone={**group.gone, **struck})


def _open(group: GroupState, cause: Cause, now: float) -> GroupState:
    """The running group has to form again."""
    return replace(
        group,
        phase=Phase.FORMING,
        epoch=group.epoch + 1,
        cause=cause,
        newcomers=0,
        admitted=False,
        taken=0,
        phase_at=now,
        arrived_at=now,
    )


def _close(group: GroupState, reason: str) -> GroupState:
    return replace(group, phase=Phase.CLOSED, closed=reason, newcomers=0)


# -- what follows ----------------------------------------------------------------------------------
def _judge(group: GroupState, now: float) -> GroupState:
    if group.phase is Phase.CLOSED:
        return group
    if end := _end_of(group, now):
        return _close(group, end)
    if group.phase is not Phase.SEALED:
        return group
    outside = [m for m in waiting(group) if m.name not in group.finished]
    # Once a member has finished, the others are near their end too and are not restarted.
    ending = any(member.name in group.finished for member in group.members)
    # Announced only when calm: for newcomers the training has to commit and end.
    calm = group.newcomers > 0 or now - group.grown_at >= group.rules.growth_pause_s
    most = min(_room(group) - len(group.members), len(outside))
    group = replace(group, newcomers=max(0, most) if calm and not ending else 0)
    if not group.newcomers:
        return replace(group, admitted=False)
    patience_s = group.rules.admit_limit_s or min(group.rules.last_call_s, group.rules.interval_s)
    if group.admitted or now - group.waiting_at >= patience_s:
        return _open(group, Cause.JOINED, now)
    return group


def _end_of(group: GroupState, now: float) -> str:
    """Why no further round can or need be formed; empty where one may."""
    if not group.finished and not group.last.finished:
        return ""
    at_work = working(group)
    lost = [m for m in group.members if m.name in group.gone and m.name not in group.finished]
    enough = len(group.finished) >= group.rules.min_nodes
    if group.members and not at_work and (not lost or enough):
        return FINISHED
    if group.phase is not Phase.FORMING:
        return ""
    nobody_comes = not at_work and now - group.phase_at >= group.rules.join_timeout_s
    return STRANDED if nobody_comes or not may_form(group) else ""


def may_form(group: GroupState) -> bool:
    """Whether the nodes that have not finished could still form a group."""
    finished = group.last.finished + len(group.finished)
    return finished == 0 or group.rules.max_nodes - finished >= group.rules.min_nodes


def _room(group: GroupState) -> int:
    """How many nodes a group may have; the place of a finished node stays taken."""
    return group.rules.max_nodes - group.last.finished - len(group.finished)


# -- sealing ---------------------------------------------------------------------------------------
def _seal(group: GroupState, now: float) -> tuple[GroupState, tuple[Action, ...]]:
    chosen = _choose(group, now) if group.phase is Phase.FORMING else ()
    if not chosen:
        return group, ()
    if group.cause is Cause.FAULT and 0 <= group.rules.max_restarts <= group.faults:
        return _close(group, EXHAUSTED), ()
    if group.rules.fenced and not group.taken:
        action = () if group.taking else (TakeGeneration(),)
        return replace(group, taking=True), action
    names = {member.name for member in chosen}
    nodes = {n: replace(x, waits=x.waits and n not in names) for n, x in group.nodes.items()}
    return replace(
        group,
        phase=Phase.SEALED,
        members=chosen,
        gone={},
        nodes=nodes,
        generation=group.taken or group.generation + 1,
        faults=group.faults + (group.cause is Cause.FAULT),
        taken=0,
        phase_at=now,
        waiting_at=now,
        grown_at=now if group.cause is Cause.JOINED else group.grown_at,
    ), ()


def _choose(group: GroupState, now: float) -> tuple[Member, ...]:
    """Who is sealed now, in order of rank; nobody while the round has to wait."""
    rules = group.rules
    here = [member for member in waiting(group) if member.name not in group.finished]
    present, survivors = {m.name for m in here}, working(group)
    left = {member.name for member in survivors}
    now_at = {member.name: member for member in here}
    kept = [now_at[member.name] for member in survivors if member.name in present]
    chosen = [*kept, *(member for member in here if member.name not in left)][: _room(group)]
    if len(chosen) < rules.min_nodes or not _is_quorate(group, len(kept), len(chosen)):
        return ()
    if not group.members:
        full = len(chosen) == _room(group) or 0 < group.last.majority_of <= _known(group)
        # All nodes notice a lost coordinator at about the same time.
        last_call_s = min(rules.last_call_s, 2.0) if group.last.generation else rules.last_call_s
        ready = full or now - group.arrived_at >= last_call_s
    else:
        ready = len(kept) == len(survivors) or now - group.phase_at >= rules.regroup_limit_s
    # By node index, so that ranks survive restarts.
    return (
        tuple(sorted(chosen, key=lambda member: (member.node_index, member.name))) if ready else ()
    )


def _known(group: GroupState) -> int:
    """Of how many members around the last coordinator it is known whether they come."""
    return group.dead + _come_again(group)


def _come_again(group: GroupState) -> int:
    """How many nodes wait that were in the newest membership around another coordinator."""
    return sum(x.waits and 0 < x.last == group.last.generation for x in group.nodes.values())


def _is_quorate(group: GroupState, kept: int, chosen: int) -> bool:
    """Whether the nodes are enough to form a group; with fencing they always are.

    Without: more than half of the last membership that did not leave or finish, wherever that was
    formed, or so many nodes, replacements among them, that the absent ones cannot form a group.
    """
    if group.rules.fenced or group.rules.rules_out_another(chosen):
        return True
    if not group.members:
        return group.last.generation == 0 or 2 * _come_again(group) > group.last.majority_of
    return 2 * kept > counted(group)


# -- refusing --------------------------------------------------------------------------------------
def _refuse_late(group: GroupState, now: float) -> tuple[Action, ...]:
    if group.phase is Phase.CLOSED:
        text = f"the run is closed: {group.closed}"
        return tuple(Refuse(member.name, "closed", text) for member in waiting(group))
    if group.phase is Phase.SEALED:
        # Waiting beside a running group does not count.
        return ()
    late = (
        node
        for node in group.nodes.values()
        if node.waits and now - max(node.since, group.phase_at) >= node.limit_s
    )
    return tuple(Refuse(n.member.name, "timeout", _why_not(group, n.limit_s)) for n in late)


def _why_not(group: GroupState, limit_s: float) -> str:
    rules, here = group.rules, len(waiting(group))
    since = f"no membership was formed within {limit_s:g} s"
    if here < rules.min_nodes:
        return f"{since}: {here} of at least {rules.min_nodes} nodes are here"
    kept = sum(group.nodes[m.name].waits for m in working(group) if m.name in group.nodes)
    if not _is_quorate(group, kept, here):
        size = len(group.members) or group.last.majority_of
        return (
            f"{since}: no majority of the last {size} nodes is here ({here}), and no shared "
            "checkpoint folder fences the run"
        )
    return since


def fence_out(group: GroupState) -> GroupState:
    """Another coordinator goes on with the run: this one ends its part."""
    return _close(group, FENCED_OUT)
