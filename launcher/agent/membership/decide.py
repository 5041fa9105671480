"""Decides who belongs to the group: ``(group, events, now) -> (group, actions)``. Pure.

FORMING(n) --seal--> SEALED(n) --open--> FORMING(n + 1) --> ...      any --close--> CLOSED
"""

from __future__ import annotations

from collections.abc import Iterable, Set
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
)
from launcher.agent.membership.settings import NONE, Last, Member


# -- events --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Join:
    """A node asks for a rendezvous, for the first time or again, for ``limit_s`` at most."""

    member: Member
    limit_s: float
    after: int = 0
    """The epoch of the last membership that it was told here; 0 before the first."""
    last: Last = NONE
    """What it knows of another coordinator's."""


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
    """The group after some events, and what has to be done besides telling the nodes of it."""
    actions: list[Action] = []
    # Copied once, and changed in place below: with thousands of nodes this is most of the work.
    group = replace(group, nodes={**group.nodes}, newest={**group.newest})
    for event in events:
        group = _take_in(group, event, now, actions)
    group = _seal(_judge(group, now), now, actions)
    if group.phase is Phase.SEALED:
        mine = {member.name for member in group.working()}
        actions += [TellAgain(m.name) for m in group.waiting() if m.name in mine]
    actions += _refuse_late(group, now)
    answered = {one.name for one in actions if isinstance(one, Refuse | TellAgain)}
    return _stop_waiting(group, answered & group.nodes.keys()), tuple(actions)


def _stop_waiting(group: GroupState, names: Set[str]) -> GroupState:
    for name in names:
        group.nodes[name] = replace(group.nodes[name], waits=False)
    return group


# -- taking in -----------------------------------------------------------------------------------
def _take_in(group: GroupState, event: Event, now: float, actions: list[Action]) -> GroupState:
    match event:
        case Join():
            return _join(group, event, now, actions)
        case Gone(name, cause):
            group.nodes.pop(name, None)
            return _strike(group, name, cause, now)
        case Finish(name):
            return replace(group, finished=group.finished | {name})
        case Close(reason) if group.phase is not Phase.CLOSED or group.closed == FINISHED:
            return replace(group, phase=Phase.CLOSED, closed=reason, newcomers=0)
        case Admit():
            return replace(group, admitted=group.newcomers > 0)
        case Generation(number, error):
            if error:
                actions += [Refuse(member.name, "state", error) for member in group.waiting()]
            return replace(group, taking=False, taken=number if number > group.generation else 0)
        case Dead():
            return replace(group, dead=group.dead + 1)
    return group


def _join(group: GroupState, join: Join, now: float, actions: list[Action]) -> GroupState:
    member, last = join.member, join.last
    name, index = member.name, member.node_index
    if last.generation > max(group.generation, group.last.generation):
        if group.members:
            # This coordinator was left behind.
            group = replace(group, phase=Phase.CLOSED, closed=FENCED_OUT, newcomers=0)
        faults = max(group.faults, last.faults)
        group = replace(group, last=last, generation=last.generation, faults=faults)
    if group.phase is Phase.CLOSED:
        actions.append(Refuse(name, "closed", f"the run is closed: {group.closed}"))
        return group
    text = f"another node came with node_index {index}: each node needs its own"
    if name in group.replaced:
        actions.append(Refuse(name, "replaced", text))
        return group
    other = group.newest.get(index, name)
    if other != name and other in group.nodes and other not in group.finished:
        actions.append(Refuse(other, "replaced", text))
        del group.nodes[other]
        group = replace(group, replaced=group.replaced | {other})
        group = _strike(group, other, Cause.REPLACED, now)
    if group.phase is Phase.SEALED and join.after >= group.epoch and group.works(name):
        group = _open(group, Cause.FAULT, now)
    # At its place in the order of arrival, if it was there before.
    group.nodes[name] = NodeEntry(
        member, waits=True, since=now, limit_s=join.limit_s, last=last.generation
    )
    group.newest[index] = name
    group = replace(group, arrived_at=now)
    return replace(group, waiting_at=now) if group.phase is Phase.SEALED else group


def _strike(group: GroupState, name: str, cause: Cause, now: float) -> GroupState:
    """A member was lost or left: a round opens, or the one that is open gets its true cause."""
    if group.phase is Phase.CLOSED or not group.works(name):
        return group
    if group.phase is Phase.SEALED:
        group = _open(group, cause, now)
    elif group.cause is Cause.FAULT:
        # The workers have failed because of the loss.
        group = replace(group, cause=cause)
    return replace(group, gone={**group.gone, name: cause})


def _open(group: GroupState, cause: Cause, now: float) -> GroupState:
    """The running group has to form again."""
    group = replace(group, phase=Phase.FORMING, epoch=group.epoch + 1, cause=cause, taken=0)
    return replace(group, newcomers=0, admitted=False, phase_at=now, arrived_at=now)


# -- what follows ----------------------------------------------------------------------------------
def _judge(group: GroupState, now: float) -> GroupState:
    if group.phase is Phase.CLOSED:
        return group
    if end := _end_of(group, now):
        return replace(group, phase=Phase.CLOSED, closed=end, newcomers=0)
    if group.phase is not Phase.SEALED:
        return group
    rules = group.rules
    # Once a member has finished, the others are near their end too and are not restarted.
    ending = any(member.name in group.finished for member in group.members)
    # Announced only when calm: for newcomers the training has to commit and end.
    calm = group.newcomers > 0 or now - group.grown_at >= rules.growth_pause_s
    mine = {member.name for member in group.members}
    others = sum(member.name not in mine for member in group.waiting())
    newcomers = max(0, min(group.room - len(group.members), others))
    group = replace(group, newcomers=newcomers if calm and not ending else 0)
    if not group.newcomers:
        return replace(group, admitted=False)
    patience_s = rules.admit_limit_s or min(rules.last_call_s, rules.interval_s)
    is_time = group.admitted or now - group.waiting_at >= patience_s
    return _open(group, Cause.JOINED, now) if is_time else group


def _end_of(group: GroupState, now: float) -> str:
    """Why no further round can or need be formed; empty where one may."""
    if not group.finished and not group.last.finished:
        return ""
    at_work = group.working()
    lost = [m for m in group.members if m.name in group.gone and m.name not in group.finished]
    enough = len(group.finished) >= group.rules.min_nodes
    if group.members and not at_work and (not lost or enough):
        return FINISHED
    if group.phase is not Phase.FORMING:
        return ""
    nobody_comes = not at_work and now - group.phase_at >= group.rules.join_timeout_s
    return STRANDED if nobody_comes or not group.may_form else ""


# -- sealing ---------------------------------------------------------------------------------------
def _seal(group: GroupState, now: float, actions: list[Action]) -> GroupState:
    chosen = _choose(group, now) if group.phase is Phase.FORMING else ()
    if not chosen:
        return group
    if group.cause is Cause.FAULT and 0 <= group.rules.max_restarts <= group.faults:
        return replace(group, phase=Phase.CLOSED, closed=EXHAUSTED)
    if group.rules.fenced and not group.taken:
        actions += [] if group.taking else [TakeGeneration()]
        return replace(group, taking=True)
    group = replace(
        _stop_waiting(group, {member.name for member in chosen}),
        generation=group.taken or group.generation + 1,
        faults=group.faults + (group.cause is Cause.FAULT),
        grown_at=now if group.cause is Cause.JOINED else group.grown_at,
        phase_at=now,
        waiting_at=now,
    )
    return replace(group, phase=Phase.SEALED, members=chosen, gone={}, taken=0)


def _choose(group: GroupState, now: float) -> tuple[Member, ...]:
    """Who is sealed now, in order of rank; nobody while the round has to wait."""
    rules, here, survivors = group.rules, group.waiting(), group.working()
    there, left = {m.name: m for m in here}, {m.name for m in survivors}
    kept = [there[member.name] for member in survivors if member.name in there]
    chosen = [*kept, *(member for member in here if member.name not in left)][: group.room]
    if len(chosen) < rules.min_nodes or not _is_quorate(group, len(chosen)):
        return ()
    if group.members:
        ready = len(kept) == len(survivors) or now - group.phase_at >= rules.regroup_limit_s
    else:
        # Around another coordinator's successor all come at about the same time.
        last_call_s = min(rules.last_call_s, 2.0) if group.last.generation else rules.last_call_s
        known = 0 < group.last.majority_of <= group.dead + _come_again(group)
        full = len(chosen) == group.room
        ready = full or known or now - group.arrived_at >= last_call_s
    # By node index, so that ranks survive restarts.
    return tuple(sorted(chosen, key=lambda m: (m.node_index, m.name))) if ready else ()


def _come_again(group: GroupState) -> int:
    """How many nodes wait that were in the last membership, wherever that was formed."""
    if group.members:
        names = {member.name for member in group.working()}
        return sum(member.name in names for member in group.waiting())
    return sum(x.waits and 0 < x.last == group.last.generation for x in group.nodes.values())


def _is_quorate(group: GroupState, chosen: int) -> bool:
    """Whether the nodes are enough to form a group; with fencing they always are.

    Without: more than half of the last membership that did not leave or finish, or so many nodes,
    replacements among them, that the absent ones cannot form a group.
    """
    if group.rules.fenced or group.rules.rules_out_another(chosen):
        return True
    return group.generation == 0 or 2 * _come_again(group) > group.majority_of


# -- refusing --------------------------------------------------------------------------------------
def _refuse_late(group: GroupState, now: float) -> list[Action]:
    waiting = [node for node in group.nodes.values() if node.waits]
    if group.phase is Phase.CLOSED:
        text = f"the run is closed: {group.closed}"
        return [Refuse(node.member.name, "closed", text) for node in waiting]
    # Waiting beside a running group does not count.
    since = now if group.phase is Phase.SEALED else group.phase_at
    late = [node for node in waiting if now - max(node.since, since) >= node.limit_s]
    return [Refuse(n.member.name, "timeout", _why_not(group, n.limit_s)) for n in late]


def _why_not(group: GroupState, limit_s: float) -> str:
    rules, here = group.rules, len(group.waiting())
    since = f"no membership was formed within {limit_s:g} s"
    if here < rules.min_nodes:
        return f"{since}: {here} of at least {rules.min_nodes} nodes are here"
    if _is_quorate(group, here):
        return since
    return (
        f"{since}: no majority of the last {group.majority_of} nodes is here "
        f"({_come_again(group)}), and no shared checkpoint folder fences the run"
    )
