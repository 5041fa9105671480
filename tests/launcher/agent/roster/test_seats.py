"""Seats of nodes that are long gone: they cost next to nothing, and one that wakes is seen."""

from __future__ import annotations

from functools import partial

from launcher.agent.roster.seats import DORMANT_LIMITS, DORMANT_TURNS
from launcher.agent.roster.settings import Rules
from tests.launcher.agent.roster.simulation import Node, World

LIMIT_S = 1.0
LONG_S = (DORMANT_LIMITS + 2) * LIMIT_S
DEAD = 1_000
limited = partial(Rules, detection_limit_s=LIMIT_S, fence_dir="shared", last_call_s=1.0)
TURN_S = 1.1 * DORMANT_TURNS * limited(min_nodes=1, max_nodes=4).interval_s
"""In which the leader looks once at each dead seat; clocks differ by 1 %."""


def formed(rules: Rules, *indexes: int) -> tuple[World, list[Node]]:
    world = World(rules)
    nodes = [world.add(index) for index in indexes]
    world.until(lambda: world.together(*nodes), 5)
    return world, nodes


def leader_of(*nodes: Node) -> Node:
    return next(n for n in nodes if n.state.leads)


def add_dead(world: World, seats: int) -> None:
    for number in range(seats):
        seat = f"{number % 4}.dead-{number}"
        world.store.data["seats"] += seat + " "
        world.store.data[f"beat/{seat}"] = "7 r1"


def keys_of(world: World, node: Node, seconds: float) -> float:
    """Keys that a node reads and writes for each pulse."""
    node.operations.clear()
    world.run(seconds)
    return node.operations["keys"] / node.operations["Write"]


def test_seats_of_dead_nodes_are_looked_at_in_turn() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=4), 0, 1, 2, 3)
    leader = leader_of(*nodes)
    alone = keys_of(world, leader, TURN_S)
    add_dead(world, DEAD)
    world.run(LONG_S)
    assert len(leader.state.dormant) == DEAD
    assert keys_of(world, leader, TURN_S) <= alone + DEAD / DORMANT_TURNS + 1
    assert world.together(*nodes)
    assert world.counts() == {}


def test_a_new_leader_learns_by_itself_which_seats_are_dead() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=4), 0, 1, 2, 3)
    add_dead(world, 100)
    world.run(LONG_S)
    leader_of(*nodes).kill()
    rest = [n for n in nodes if not n.dead]
    world.until(lambda: world.together(*rest), LIMIT_S + 2)
    world.run(LONG_S)
    assert len(leader_of(*rest).state.dormant) == 101


def test_a_node_that_was_frozen_for_very_long_comes_in_again() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=4), 0, 1, 2)
    sleeper = next(n for n in nodes if not n.state.leads)
    rest = [n for n in nodes if n is not sleeper]
    sleeper.freeze()
    world.run(LIMIT_S + LONG_S)
    assert sleeper.state.seat in leader_of(*rest).state.dormant
    sleeper.wake()
    world.until(lambda: world.together(*nodes), TURN_S + 15)
    world.run(LONG_S)
    assert leader_of(*nodes).state.dormant == {}


def test_a_node_that_wakes_after_very_long_is_told_that_its_place_was_taken() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=4), 0, 1, 2)
    sleeper = next(n for n in nodes if not n.state.leads)
    rest = [n for n in nodes if n is not sleeper]
    sleeper.freeze()
    world.until(lambda: world.together(*rest), LIMIT_S + 2)
    instead = world.add(sleeper.state.index)
    world.until(lambda: world.together(*rest, instead), 15)
    world.run(LONG_S)
    sleeper.wake()
    world.until(lambda: sleeper.refused is not None, TURN_S + 5)
    assert sleeper.refused is not None
    assert f"node_index {sleeper.state.index}" in sleeper.refused.text
    assert world.together(*rest, instead)


def test_a_node_that_died_while_it_waited_is_never_taken_for_one_that_waits() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=2), 0, 1)
    third = world.add(2)
    world.run(2)
    third.kill()
    world.run(LONG_S)
    leader = leader_of(*nodes)
    assert leader.state.dormant[third.state.seat].text.endswith("j1")
    next(n for n in nodes if n is not leader).kill()
    world.until(lambda: world.together(leader), LIMIT_S + 2)
    world.run(2 * TURN_S)
    assert world.together(leader)
    assert world.counts() == {"lost": 1}, "nobody was admitted"


def test_who_has_finished_stays_known_when_its_seat_is_dead() -> None:
    world, nodes = formed(limited(min_nodes=1, max_nodes=3), 0, 1, 2)
    done = next(n for n in nodes if not n.state.leads)
    rest = [n for n in nodes if n is not done]
    done.finish()
    world.run(1)
    done.kill()
    world.run(LONG_S)
    leader = leader_of(*rest)
    leader.rejoin()
    world.until(lambda: world.together(*rest), 5)
    world.run(LONG_S)
    assert done.state.seat in leader.state.dormant
    assert leader.state.finished_seats == (done.state.seat,)
    for node in rest:
        node.finish()
    world.until(lambda: all(n.has_ended() for n in rest), 5)
