"""A world of simulated nodes and coordinators: the pure decisions, with nothing real.

Each word between a node and a coordinator is on its way for a while. Each coordinator has a clock
of its own. Any of them, and any node, can freeze, wake, be cut off or die between any two instants.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from launcher.agent.membership import decisions
from launcher.agent.membership.candidates import RETURN_LIMIT_S
from launcher.agent.membership.group import (
    FENCED_OUT,
    NONE,
    GroupState,
    Join,
    Last,
    Member,
    RoundCause,
    Rules,
)

LOOK_S = 0.1
FENCE_LOOK_S = 5.0
CONNECT_LIMIT_S = 5.0
REJOIN_LIMIT_S = 30.0
"""After that an agent ends, and its scheduler starts it again: here it looks elsewhere."""


@dataclass(frozen=True)
class Sealed:
    """A membership, as a node was told it."""

    generation: int
    members: tuple[Member, ...]


@dataclass(eq=False)
class Machine:
    """Whatever can freeze, wake, be cut off and die."""

    world: World
    dead: bool = False
    frozen: bool = False
    cut: bool = False
    """Nothing that it says or is told gets through, until its nodes dial again."""
    deferred: list[Callable[[], None]] = field(default_factory=list)

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        """Something that this one does later: not when dead, and only when awake."""

        def awake() -> None:
            if self.frozen and not self.dead:
                self.deferred.append(awake)
            elif not self.dead:
                act()

        self.world.at(delay_s, awake)

    def mend(self) -> None:
        self.cut = False
        for node in self.world.nodes:
            if node.joined_at is not None and self in (node, node.coordinator):
                node.at(self.world.delay(), node.ask)

    def wake(self) -> None:
        self.frozen = False
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            act()


@dataclass(eq=False)
class Coordinator(Machine):
    """One candidate's turn at serving the run."""

    rules: Rules = field(kw_only=True)
    number: int = 0
    offset_s: float = 0.0
    heard: dict[str, float] = field(default_factory=dict)
    looked_at: float = 0.0

    def __post_init__(self) -> None:
        self.group = GroupState(rules=self.rules, phase_at=self.clock())
        self.looked_at = self.fence_looked_at = self.clock()
        self.at(0.0, self.look)

    def clock(self) -> float:
        return self.offset_s + self.world.now

    def look(self) -> None:
        """Silence, the shared folder, and time."""
        now, limit_s = self.clock(), self.rules.detection_limit_s
        if (stood_s := now - self.looked_at) > limit_s / 2:
            self.heard = {name: at + stood_s for name, at in self.heard.items()}
        self.looked_at = now
        for name in [name for name, at in self.heard.items() if now - at >= limit_s]:
            del self.heard[name]
            self.see(decisions.Gone(name, RoundCause.LOST))
        if self.rules.fence_dir and now - self.fence_looked_at >= FENCE_LOOK_S:
            self.fence_looked_at = now
            self.is_overtaken()
        self.see()
        self.at(LOOK_S, self.look)

    def is_overtaken(self) -> bool:
        """Whether another coordinator has taken a later generation; then this one ends its part."""
        taken = self.world.taken
        is_of_another = bool(taken) and taken[-1] is not self
        if is_of_another and self.group.members and self.group.generation < len(taken):
            self.see(decisions.Close(FENCED_OUT))
            return True
        return False

    def see(self, *events: decisions.Event) -> None:
        self.group, actions = decisions.step(self.group, events, self.clock())
        for action in actions:
            match action:
                case decisions.Refuse(name):
                    self.tell(name, lambda node, a=action: node.refuse(a))
                case decisions.Tell(names):
                    group = self.group
                    sealed = Sealed(group.generation, group.members)
                    for name in sorted(names):
                        self.tell(name, lambda node, s=sealed: node.enter(s))
                case _:
                    self.at(self.world.delay(), self.take)

    def take(self) -> None:
        """The next number of the shared folder."""
        if self.is_overtaken():
            return
        self.world.taken.append(self)
        number = len(self.world.taken)
        self.at(self.world.delay(), lambda: self.see(decisions.Generation(number)))

    def tell(self, name: str, act: Callable[[Node], None]) -> None:
        for node in self.world.nodes:
            if node.name == name and node.coordinator is self and not (self.cut or node.cut):
                node.at(self.world.delay(), lambda n=node: n.coordinator is self and act(n))

    def hear(self, node: Node, event: decisions.Event | None) -> None:
        self.heard[node.name] = self.clock()
        if event:
            self.see(event)

    def connection_closed(self, node: Node) -> None:
        """A node's process has ended, and its port refuses."""
        if self.heard.pop(node.name, None) is not None:
            self.see(decisions.Gone(node.name, RoundCause.LOST))


@dataclass(eq=False)
class Node(Machine):
    """A machine, an agent that obeys the coordinator, and its workers."""

    index: int = 0
    life: int = 0
    coordinator: Coordinator | None = None
    left_behind: Coordinator | None = None
    patient_until: float = 0.0
    """An agent that was started again looks so long for a coordinator before it serves one."""
    number: int = 0
    heard_at: float = 0.0
    lost_at: float = 0.0
    joined_at: float | None = None
    """Since when it asks for a rendezvous."""
    running: Sealed | None = None
    last: Last = NONE
    finished: bool = False
    left: bool = False
    refused: decisions.Refuse | None = None

    def __post_init__(self) -> None:
        self.member = Member(f"{self.index}.{self.life}", "a", 1, 1, 1)
        self.name = self.member.name
        self.at(self.world.random.uniform(0, LOOK_S), self.look)

    @property
    def is_here(self) -> bool:
        return not (self.dead or self.frozen or self.left or self.refused)

    def say(self, event: decisions.Event | None) -> None:
        if (to := self.coordinator) and not (self.cut or to.cut):
            to.at(self.world.delay(), lambda: self.coordinator is to and to.hear(self, event))

    def look(self) -> None:
        """The client's thread and torch's monitor in one."""
        if self.left or self.refused:
            return
        self.at(LOOK_S, self.look)
        told = self.coordinator
        if told is None:
            self.find()
            return
        if not told.dead and not told.frozen and not told.cut and not self.cut:
            self.heard_at = self.world.now
        if told.dead or self.world.now - self.heard_at > self.world.rules.silence_s:
            self.lose()
            return
        self.say(None)
        if self.heard_at < self.world.now:
            return
        group = told.group
        if group.generation == self.last.generation:
            self.last = Last(group.generation, group.majority_of, group.faults, group.finished)
        if group.closed == FENCED_OUT:
            self.lose()
        elif self.running:
            if not group.sealed or group.generation != self.running.generation:
                self.join()
            else:
                self.world.commit(self, self.running)
                if group.newcomers:
                    self.say(decisions.Admit())

    def lose(self) -> None:
        """The coordinator is gone: the workers stop, and the next candidate is asked."""
        self.left |= self.finished
        self.left_behind, self.coordinator = self.coordinator, None
        self.running, self.joined_at = None, None
        self.number, self.lost_at = self.number + 1, self.world.now

    def find(self) -> None:
        served = [one for one in self.world.coordinators if one and self.reaches(one)]
        if served:
            # Not the one that was just left, if there is another.
            self.dial(min(served, key=lambda one: one is self.left_behind))
            return
        if self.world.now < self.patient_until:
            return
        number = self.number % len(self.world.coordinators)
        if number == self.index and not self.cut:
            self.dial(self.world.serve(number))
        elif self.world.now - self.lost_at > CONNECT_LIMIT_S:
            self.lost_at, self.number = self.world.now, self.number + 1

    def reaches(self, one: Coordinator) -> bool:
        silent = one.dead or one.frozen or one.cut or self.cut
        return not (silent or one.group.closed)

    def dial(self, coordinator: Coordinator) -> None:
        self.coordinator, self.heard_at = coordinator, self.world.now
        self.join()

    def join(self) -> None:
        self.running, self.joined_at = None, self.world.now
        self.at(self.world.stop_s, self.ask)

    def ask(self) -> None:
        if self.joined_at is not None:
            self.say(Join(self.member, REJOIN_LIMIT_S, self.last))

    def enter(self, sealed: Sealed) -> None:
        names = [member.name for member in sealed.members]
        if not self.finished and self.name in names:
            self.running, self.joined_at = sealed, None
            self.last = Last(sealed.generation, len(names))
            self.world.entered(self, sealed)

    def refuse(self, action: decisions.Refuse) -> None:
        fenced = self.coordinator and self.coordinator.group.closed == FENCED_OUT
        if action.kind == "timeout" or (action.kind == "closed" and fenced):
            self.lose()
        else:
            self.refused, self.running = action, None

    # -- what happens to it
    def kill(self) -> None:
        to, self.dead, self.running = self.coordinator, True, None
        if to and not (self.cut or to.cut):
            to.at(self.world.delay(), lambda: to.connection_closed(self))

    def lose_power(self) -> None:
        """Nothing closes its connections."""
        self.dead, self.running = True, None

    def leave(self) -> None:
        self.say(decisions.Gone(self.name, RoundCause.LEFT))
        self.running, self.left = None, True

    def finish(self) -> None:
        if self.running:
            self.finished, self.running = True, None
            self.say(decisions.Gone(self.name, RoundCause.FINISHED))

    def fault(self) -> None:
        if self.running:
            self.join()


class World:
    """Simulated time, the plan's candidates, one shared folder, any number of nodes."""

    def __init__(self, rules: Rules, seed: int = 0, delay_s: float = 0.002, candidates: int = 2):
        self.rules, self.random, self.delay_s = rules, random.Random(seed), delay_s
        self.stop_s, self.now, self.order = 0.05, 0.0, 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.coordinators: list[Coordinator | None] = [None] * candidates
        self.served: list[Coordinator] = []
        self.nodes: list[Node] = []
        self.taken: list[Coordinator] = []
        """Who took each generation, the first one first."""
        self.of_generation: dict[object, tuple[str, ...]] = {}

    def delay(self) -> float:
        return self.random.uniform(0.1, 1.0) * self.delay_s

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay_s, self.order, act))

    def add(self, index: int) -> Node:
        again = any(node.index == index for node in self.nodes)
        patient_until = self.now + (self.rules.detection_limit_s + RETURN_LIMIT_S) * again
        node = Node(self, index=index, life=len(self.nodes), patient_until=patient_until)
        self.nodes.append(node)
        return node

    def serve(self, number: int) -> Coordinator:
        """The candidate of this number serves: in the place of the one that it served before."""
        if (before := self.coordinators[number]) is not None:
            before.dead = True
        rules, offset_s = replace(self.rules, node_index=number), self.random.uniform(0, 1e6)
        one = Coordinator(self, rules=rules, number=number, offset_s=offset_s)
        self.coordinators[number] = one
        self.served.append(one)
        return one

    def run(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self.queue and self.queue[0][0] <= end:
            self.now, _, act = heapq.heappop(self.queue)
            act()
        self.now = end

    def until(self, condition: Callable[[], bool], limit_s: float) -> float:
        """Seconds until the condition held; fails after ``limit_s``."""
        began = self.now
        while not condition():
            assert self.now - began < limit_s, self.story()
            self.run(0.02)
        return self.now - began

    # -- what must never happen
    def entered(self, node: Node, sealed: Sealed) -> None:
        names = tuple(member.name for member in sealed.members)
        of = sealed.generation if self.rules.fence_dir else (node.coordinator, sealed.generation)
        assert self.of_generation.setdefault(of, names) == names
        indexes = [member.node_index for member in sealed.members]
        assert indexes == sorted(set(indexes)), "ranks are in order of index"
        assert node.name in names
        assert self.rules.min_nodes <= len(names) <= self.rules.max_nodes

    def commit(self, node: Node, sealed: Sealed) -> None:
        """A commit counts only under the newest generation; that is what fencing is for."""
        if self.rules.fence_dir and sealed.generation == len(self.taken):
            newest = max(number for number in self.of_generation if isinstance(number, int))
            assert sealed.generation == newest, "a commit from the past"

    # -- what is true now
    def alive(self) -> list[Node]:
        return [node for node in self.nodes if node.is_here and not node.cut]

    def together(self, *nodes: Node) -> bool:
        """Whether exactly these nodes run in one membership."""
        first = nodes[0].running
        return (
            first is not None
            and len(first.members) == len(nodes)
            and all(node.running == first for node in nodes)
        )

    def story(self) -> str:
        lines = [f"{self.now:.1f} s"]
        for one in (*self.served, *self.nodes):
            what = [x for x in ("dead", "frozen", "cut", "left") if getattr(one, x, False)]
            told = one.group if isinstance(one, Coordinator) else (one.name, one.running)
            lines.append(f"{type(one).__name__} {one.number} {what} {told}")
        return "\n".join(lines)
