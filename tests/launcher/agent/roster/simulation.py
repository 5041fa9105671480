"""A world of simulated nodes around one simulated store: the pure machine, with nothing real.

Every operation on the store is sent, carried out and answered at three different instants, each
node has a clock of its own, and a node can freeze, wake or die between any two instants.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from launcher.agent.roster import events
from launcher.agent.roster.decide import plan_lines
from launcher.agent.roster.membership import Membership, Phase, format_card, parse_head
from launcher.agent.roster.state_machine import start, step
from launcher.agent.roster.view import State, nodes_waiting, pause_s

MONITOR_S = 0.1


class Store:
    """Linearizable, as TCPStore is; a read of a missing key would block for ever, so it fails."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}

    def carry_out(self, action: events.StoreAction) -> events.Event:
        match action:
            case events.Write(key, text):
                self.data[key] = text
                return events.Done()
            case events.Enlist(seat):
                self.data["seats"] = self.data.get("seats", "") + seat + " "
                return events.Done()
            case events.Fetch(keys):
                missing = [key for key in keys if key not in self.data]
                assert not missing, f"a read of {missing} would block"
                return events.Values({key: self.data[key] for key in keys})
            case events.Swap(expected, desired):
                if self.data.get("head", "") == expected:
                    self.data["head"] = desired
                return events.Swapped(self.data["head"])


@dataclass
class Node:
    """One simulated node: a machine, an agent that obeys ``num_nodes_waiting``, and a clock."""

    world: World
    name: str
    state: State
    offset_s: float
    rate: float
    frozen: bool = False
    dead: bool = False
    left: bool = False
    running: Membership | None = None
    finished: bool = False
    refused: events.Refuse | None = None
    joining: bool = False
    storage_hangs: bool = False
    deferred: list[Callable[[], None]] = field(default_factory=list)
    history: list[Membership] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)

    def clock(self) -> float:
        return self.offset_s + self.world.now * self.rate

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        """Something this node does later: not when dead, and only when awake."""

        def awake() -> None:
            if self.dead:
                return
            if self.frozen:
                self.deferred.append(awake)
            else:
                act()

        self.world.at(delay_s, awake)

    def handle(self, event: events.Event) -> None:
        self.state, actions = step(self.state, event, self.clock())
        for action in actions:
            match action:
                case events.Deliver(membership):
                    self.enter(membership)
                case events.Refuse():
                    self.refused, self.joining = action, False
                case events.TakeGeneration():
                    self.at(self.world.delay(), self.take)
                case _:
                    self.send(action)

    def take(self) -> None:
        if self.storage_hangs:
            return
        self.world.generation += 1
        number = self.world.generation
        self.at(self.world.delay(), lambda: self.handle(events.Generation(number)))

    def send(self, action: events.StoreAction) -> None:
        self.operations[type(action).__name__] += 1
        self.operations["keys"] += len(action.keys) if isinstance(action, events.Fetch) else 1

        def arrive() -> None:
            if self.world.now < self.world.store_frozen_until:
                self.world.at(self.world.store_frozen_until - self.world.now, arrive)
                return
            reply = self.world.store.carry_out(action)
            self.at(self.world.delay(), lambda: self.handle(reply))

        self.world.at(self.world.delay(), arrive)

    def pulse(self) -> None:
        if self.left or self.refused:
            return
        if self.state.asked is None:
            self.handle(events.PlainEvent.PULSE)
        self.at(pause_s(self.state, self.clock()) / self.rate, self.pulse)

    def monitor(self) -> None:
        """torch's agent: re-joins when told that nodes wait; tries to commit otherwise."""
        if self.running and nodes_waiting(self.state) > 0:
            self.rejoin(self.world.delay() + self.world.stop_s)
        elif self.running:
            self.world.commit(self, self.running)
        self.at(MONITOR_S, self.monitor)

    def enter(self, membership: Membership) -> None:
        self.joining = False
        self.running = membership
        self.history.append(membership)
        self.world.entered(self, membership)

    def rejoin(self, delay_s: float = 0.0) -> None:
        if not self.joining and not self.left and not self.refused and not self.finished:
            self.running, self.joining = None, True
            self.at(delay_s, lambda: self.handle(events.Join(format_card(self.name, 1))))

    # -- what happens to it
    def freeze(self) -> None:
        self.frozen = True

    def wake(self) -> None:
        self.frozen = False
        if self.running:
            self.world.commit(self, self.running)
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            act()

    def kill(self) -> None:
        self.dead, self.running = True, None

    def die(self) -> None:
        """As ``kill``, and its connections close, which those that watch it learn."""
        self.kill()
        self.close_lines()

    def close_lines(self) -> None:
        """Those that watch it are told that it is dead, which may not be true."""
        told = events.LineClosed(self.state.seat)
        for node in self.world.nodes:
            watched = plan_lines(node.state) or ()
            if any(member.seat == told.seat for member in watched):
                node.at(self.world.delay(), partial(node.handle, told))

    def leave(self) -> None:
        self.running = None
        self.handle(events.PlainEvent.LEAVE)
        self.at(2.0, lambda: setattr(self, "left", True))

    def finish(self) -> None:
        """Its workers have all succeeded: it waits at the exit barrier."""
        self.running, self.finished = None, True
        self.handle(events.PlainEvent.FINISH)

    def has_ended(self) -> bool:
        """Whether its agent's process would be gone by now."""
        head = self.state.head
        waits = self.finished and not (head and head.phase is Phase.CLOSED)
        return self.dead or self.refused is not None or (self.finished and not waits)

    def admit(self) -> None:
        self.handle(events.PlainEvent.ADMIT)

    def close(self, reason: str) -> None:
        self.handle(events.Close(reason))


class World:
    """Simulated time, one store, one shared folder for generations, any number of nodes."""

    def __init__(self, rules: events.Rules, seed: int = 0, delay_s: float = 0.002) -> None:
        self.rules = rules
        self.random = random.Random(seed)
        self.delay_s = delay_s
        self.stop_s = 0.05
        self.store_frozen_until = 0.0
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.store = Store()
        self.generation = 0
        self.nodes: list[Node] = []
        self.of_generation: dict[int, tuple[str, ...]] = {}
        self.commits: list[tuple[float, int]] = []

    def delay(self) -> float:
        return self.random.uniform(0.1, 1.0) * self.delay_s

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay_s, self.order, act))

    def add(self, index: int, joins: bool = True) -> Node:
        nonce = f"n{len(self.nodes)}"
        node = Node(
            world=self,
            name=f"{index}/{nonce}",
            state=start(self.rules, index, nonce),
            offset_s=self.random.uniform(-1e6, 1e6),
            rate=self.random.uniform(0.99, 1.01),
        )
        self.nodes.append(node)
        if joins:
            node.rejoin()
        node.at(self.delay(), node.pulse)
        node.at(self.random.uniform(0, MONITOR_S), node.monitor)
        return node

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
    def entered(self, node: Node, membership: Membership) -> None:
        seats = tuple(member.seat for member in membership.members)
        assert self.of_generation.setdefault(membership.generation, seats) == seats
        indexes = [int(seat.partition(".")[0]) for seat in seats]
        assert indexes == sorted(set(indexes)), "ranks are in order of index"
        assert seats[membership.rank] == node.state.seat
        assert self.rules.min_nodes <= len(seats) <= self.rules.max_nodes
        assert not node.finished, "finished work is never started again"

    def commit(self, node: Node, membership: Membership) -> None:
        """A commit counts only under the newest generation; that is what fencing is for."""
        if self.rules.fenced and membership.generation != self.generation:
            return
        self.commits.append((self.now, membership.generation))
        newest = max(self.of_generation)
        assert membership.generation >= newest or not self.rules.fenced, "a commit from the past"

    # -- what is true now
    def alive(self) -> list[Node]:
        gone = (n for n in self.nodes if n.dead or n.frozen or n.state.leaving or n.refused)
        without = {n.name for n in gone}
        return [n for n in self.nodes if n.name not in without]

    def together(self, *nodes: Node) -> bool:
        """Whether exactly these nodes run in one membership."""
        running = [n.running for n in nodes]
        first = running[0]
        if first is None or len(first.members) != len(nodes):
            return False
        return all(r is not None and r.epoch == first.epoch for r in running)

    def counts(self) -> dict[str, int]:
        return dict(parse_head(self.store.data["head"]).counts)

    def story(self) -> str:
        lines = [self.store.data.get("head", "no head")]
        for n in self.nodes:
            what = "dead" if n.dead else "frozen" if n.frozen else "left" if n.left else "alive"
            lines.append(f"{n.name} {n.state.seat} {what} joining={n.joining} {n.running}")
        return "\n".join(lines)
