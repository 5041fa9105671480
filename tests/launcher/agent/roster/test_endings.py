"""How a run ends: nodes that finish early, late or never, in a simulated world. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from launcher.agent.roster.membership import parse_head
from launcher.agent.roster.settings import Rules
from tests.launcher.agent.roster.simulation import Node, World

LIMIT_S = 5.0
limited = partial(Rules, detection_limit_s=LIMIT_S, last_call_s=1.0, fence_dir="shared")
FIXED = limited(min_nodes=2, max_nodes=2, max_restarts=0)
ELASTIC = limited(min_nodes=1, max_nodes=3, max_restarts=3)


def formed(rules: Rules, size: int, seed: int = 0) -> tuple[World, list[Node]]:
    world = World(rules, seed)
    nodes = [world.add(index) for index in range(size)]
    world.until(lambda: world.together(*nodes), 5)
    return world, nodes


def closed(world: World) -> str:
    return parse_head(world.store.data["head"]).closed


def have_ended(*nodes: Node) -> bool:
    return all(node.has_ended() for node in nodes)


def test_nodes_that_finish_together_close_the_run_within_a_second() -> None:
    world, nodes = formed(limited(min_nodes=64, max_nodes=64), 64)
    for node in nodes:
        node.finish()
    assert world.until(lambda: have_ended(*nodes), 5) < 1.0
    assert closed(world) == "finished"


def test_a_node_that_finishes_long_before_the_others_waits_for_them() -> None:
    world, (early, late) = formed(FIXED, 2)
    early.finish()
    world.run(600)
    assert not early.has_ended()
    assert late.running
    late.finish()
    world.until(lambda: have_ended(early, late), 5)
    assert closed(world) == "finished"
    assert world.counts() == {}


def test_a_worker_that_fails_after_another_node_has_finished_ends_a_run_of_fixed_size() -> None:
    world, (early, late) = formed(FIXED, 2)
    early.finish()
    world.run(1)
    late.rejoin()
    world.until(lambda: have_ended(early, late), 5)
    assert closed(world) == "stranded"
    assert late.refused


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_lost_after_the_other_has_finished_ends_a_run_of_fixed_size(lost: int) -> None:
    world, nodes = formed(FIXED, 2)
    nodes[1 - lost].finish()
    world.run(1)
    nodes[lost].kill()
    world.until(lambda: have_ended(*nodes), LIMIT_S + 2)
    assert closed(world) == "stranded"


def test_a_node_that_freezes_after_the_other_has_finished_ends_the_run() -> None:
    world, (early, late) = formed(FIXED, 2)
    early.finish()
    world.run(1)
    late.freeze()
    world.until(early.has_ended, LIMIT_S + 2)
    assert closed(world) == "stranded"
    late.wake()
    world.until(late.has_ended, LIMIT_S + 2)


def test_an_elastic_run_has_finished_once_only_finished_nodes_are_left() -> None:
    world, nodes = formed(ELASTIC, 3)
    nodes[0].finish()
    nodes[1].kill()
    nodes[2].kill()
    world.until(lambda: have_ended(*nodes), 2 * LIMIT_S + 2)
    assert closed(world) == "finished"


def test_elastic_nodes_that_have_not_finished_go_on_without_those_that_have() -> None:
    world, nodes = formed(ELASTIC, 3)
    nodes[0].finish()
    world.run(1)
    nodes[1].rejoin()
    world.until(lambda: world.together(nodes[1], nodes[2]), 5)
    assert world.counts() == {"fault": 1}
    nodes[1].finish()
    nodes[2].finish()
    world.until(lambda: have_ended(*nodes), 5)
    assert closed(world) == "finished"


def test_nobody_is_let_in_once_a_member_has_finished() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=3, growth_pause_s=0), 2)
    nodes[0].finish()
    world.run(1)
    newcomer = world.add(2)
    world.run(300)
    assert nodes[1].running
    assert len(nodes[1].history) == 1
    nodes[1].finish()
    world.until(lambda: have_ended(*nodes, newcomer), 5)
    assert newcomer.refused
    assert "finished" in newcomer.refused.text


def test_a_finished_node_that_is_stopped_leaves_the_others_alone() -> None:
    world, nodes = formed(FIXED, 2)
    nodes[0].finish()
    world.run(1)
    nodes[0].leave()
    world.run(600)
    assert len(nodes[1].history) == 1
    nodes[1].finish()
    world.until(lambda: nodes[1].has_ended(), LIMIT_S + 2)
    assert closed(world) == "finished"


def test_what_had_finished_under_an_earlier_store_is_not_waited_for() -> None:
    world = World(limited(min_nodes=2, max_nodes=2, finished_before=1))
    node = world.add(1)
    world.until(node.has_ended, 5)
    assert closed(world) == "stranded"


@pytest.mark.parametrize("rules", [FIXED, ELASTIC])
@pytest.mark.parametrize("done_s", [0.0, 0.2, LIMIT_S, LIMIT_S + 1])
@pytest.mark.parametrize("back_s", [0.0, 0.2, LIMIT_S, LIMIT_S + 1])
def test_a_node_that_is_replaced_while_its_only_peer_finishes_holds_nobody_up(
    rules: Rules, done_s: float, back_s: float
) -> None:
    world, (peer, lost) = formed(rules, 2)
    lost.kill()
    world.at(back_s, lambda: world.add(1))
    # Work is done only where the group has not stopped it to form again.
    peer.at(done_s, lambda: peer.finish() if peer.running else None)
    world.run(2 * LIMIT_S)
    replacement = world.nodes[-1]
    for node in (peer, replacement):
        if node.running:
            node.finish()
    world.until(lambda: have_ended(peer, replacement), 2 * LIMIT_S)


# -- random schedules ---------------------------------------------------------------------------
@dataclass
class Work:
    """What one node index does in one schedule: seconds of work, and how its attempts end."""

    seconds: float
    codes: list[int] = field(default_factory=list)
    """Exit codes of its first attempts, other than 0; every later one succeeds."""
    killed_after_s: float | None = None


class Schedule:
    """Workers of N nodes end at different times with different codes; some nodes die."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.size = draw.randint(1, 5)
        low = draw.choice([1, self.size])
        self.restarts = draw.choice([0, 1, 10])
        self.collective = draw.random() < 0.5
        rules = limited(
            min_nodes=low, max_nodes=self.size, max_restarts=self.restarts, join_timeout_s=60
        )
        self.world = World(rules, seed)
        self.works = []
        for _ in range(self.size):
            work = Work(seconds=draw.choice([0.1, 1.0, draw.uniform(0, 400)]))
            if draw.random() < 0.4:
                work.codes = [draw.choice([1, 2, -9])] * draw.randint(1, 3)
            if draw.random() < 0.2:
                work.killed_after_s = draw.uniform(0, 300)
            self.works.append(work)
        self.finished_runs = [0] * self.size
        self.nodes = [self.world.add(index) for index in range(self.size)]
        self.started: dict[str, int] = {}

    def end(self) -> None:
        """Runs until all have ended; fails where one never does."""
        for node, work in zip(self.nodes, self.works, strict=True):
            if work.killed_after_s is not None:
                node.at(work.killed_after_s, node.kill)
        self.world.until(self._step, 4000)

    def _step(self) -> bool:
        for node in list(self.nodes):
            epoch = node.running.epoch if node.running else 0
            if epoch and self.started.get(node.name) != epoch:
                self.started[node.name] = epoch
                self._begin(node, epoch)
        return have_ended(*self.nodes)

    def _begin(self, node: Node, epoch: int) -> None:
        index = node.state.index
        work = self.works[index]
        code = work.codes.pop(0) if work.codes else 0

        def end() -> None:
            if node.running is None or node.running.epoch != epoch:
                return
            if code == 0:
                self.finished_runs[index] += 1
                node.finish()
            else:
                node.rejoin()
                if self.collective:
                    self._fail_the_others(epoch)

        node.at(work.seconds, end)

    def _fail_the_others(self, epoch: int) -> None:
        for other in self.nodes:
            if other.running and other.running.epoch == epoch:
                other.at(self.world.delay(), other.rejoin)

    def disturbed(self) -> bool:
        return any(w.killed_after_s is not None for w in self.works)


@pytest.mark.parametrize("seed", range(16))
def test_no_schedule_of_endings_hangs_or_starts_finished_work_again(seed: int) -> None:
    schedule = Schedule(seed)
    fails = any(work.codes for work in schedule.works)
    schedule.end()
    assert max(schedule.finished_runs) <= 1
    reason = closed(schedule.world)
    if not fails and not schedule.disturbed():
        assert reason == "finished"
        assert schedule.world.counts() == {}
        assert schedule.finished_runs == [1] * schedule.size
    if fails and schedule.restarts == 0 and not schedule.disturbed():
        assert reason != "finished"
