"""The pure machine, told of connections that have closed: who is lost, and who is not."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent.roster import events
from launcher.agent.roster.decide import plan_lines
from launcher.agent.roster.membership import Member, format_members
from launcher.agent.roster.settings import WATCHED, Rules
from tests.launcher.agent.roster.simulation import Node, World
from tests.launcher.agent.roster.test_world import MOVES, formed, play, settled

LIMIT_S = 600.0
"""Nobody is lost by silence within any of these stories."""
SOON_S = 1.2
"""Simulated: two pulses without a beat, and a new round."""
limited = partial(Rules, fence_dir="shared", min_nodes=1, detection_limit_s=LIMIT_S)
FOUR = limited(max_nodes=4, last_call_s=1.0)
MANY = limited(max_nodes=32)


def watched(node: Node) -> list[str]:
    return [member.seat for member in plan_lines(node.state) or ()]


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_node_that_died_is_replaced_by_a_smaller_group_at_once(dead: int) -> None:
    world, nodes = formed(FOUR, 0, 1, 2)
    nodes[dead].die()
    rest = [n for n in nodes if not n.dead]
    assert world.until(lambda: world.together(*rest), 10) <= SOON_S
    assert world.counts() == {"lost": 1}


@pytest.mark.parametrize("with_leader", [False, True])
def test_many_neighbours_that_died_together_are_replaced_soon(with_leader: bool) -> None:
    world, nodes = formed(MANY, *range(32))
    at = next(i for i, n in enumerate(nodes) if n.state.leads)
    dying = [nodes[(at + step) % 32] for step in range(0 if with_leader else 4, 24)]
    for node in dying:
        node.die()
    rest = [n for n in nodes if not n.dead]
    if with_leader:
        # Nobody watches the middle of this row until there is a new leader.
        world.until(lambda: any(n.state.leads for n in rest), SOON_S)
        for node in dying:
            node.close_lines()
    assert world.until(lambda: world.together(*rest), 20) <= 2 * SOON_S
    assert world.counts() == {"lost": 1}


def test_the_leader_is_connected_with_all_and_the_others_with_their_successors() -> None:
    world, nodes = formed(MANY, *range(32))
    seats = [n.state.seat for n in nodes]
    for node in nodes:
        others = 31 if node.state.leads else WATCHED
        at = seats.index(node.state.seat)
        assert watched(node) == (seats[at + 1 :] + seats[:at])[:others]
    nodes[5].finish()
    world.run(1.0)
    assert not [n for n in nodes if seats[5] in watched(n)], "it has nothing to lose any more"
    nodes[0].close("finished")
    world.run(1.0)
    assert not any(watched(n) for n in nodes)


def test_a_node_that_died_in_the_round_that_forms_is_not_waited_for() -> None:
    world, nodes = formed(FOUR, 0, 1, 2)
    nodes[2].rejoin(60.0)
    for node in nodes[:2]:
        node.rejoin()
    world.run(1.0)
    nodes[2].die()
    assert world.until(lambda: world.together(*nodes[:2]), 10) <= SOON_S
    assert world.counts() == {"lost": 1}


def test_a_last_beat_that_comes_late_is_no_sign_of_life() -> None:
    world, nodes = formed(FOUR, 0, 1)
    victim = next(n for n in nodes if not n.state.leads)
    victim.die()
    world.run(0.2)
    world.store.data[f"beat/{victim.state.seat}"] = "999 r1"
    rest = [n for n in nodes if not n.dead]
    assert world.until(lambda: world.together(*rest), 10) <= SOON_S


def test_what_is_taken_back_is_left_to_silence() -> None:
    """A node that was stopped, whose connection was cut, and whose kernel answers."""
    world, nodes = formed(FOUR, 0, 1)
    victim = next(n for n in nodes if not n.state.leads)
    other = next(n for n in nodes if n is not victim)
    victim.freeze()
    other.handle(events.LineClosed(victim.state.seat))
    world.run(0.1)
    other.handle(events.LineOpen(victim.state.seat))
    world.run(10.0)
    assert world.together(*nodes)
    assert world.counts() == {}


def test_a_living_node_is_no_longer_in_doubt_after_two_beats() -> None:
    world, nodes = formed(FOUR, 0, 1)
    nodes[0].close_lines()
    nodes[1].close_lines()
    world.run(0.05)
    assert all(n.state.closed_lines for n in nodes)
    world.run(2.0)
    assert not any(n.state.closed_lines for n in nodes)
    assert world.counts() == {}


# -- around a second store -------------------------------------------------------------------------
BEFORE = tuple(Member(seat=f"{index}.old-0", addr="a", port=1) for index in range(3))
SECOND = limited(
    max_nodes=3,
    last_call_s=100.0,
    nodes_before=3,
    members_before=format_members(BEFORE),
)


def test_around_a_second_store_the_leader_alone_asks_who_is_missing() -> None:
    world = World(SECOND)
    first, second = world.add(1), world.add(2)
    world.run(0.5)
    leader, other = (first, second) if first.state.leads else (second, first)
    assert {int(seat[0]) for seat in watched(leader)} == {0, 1, 2} - {leader.state.index}
    assert watched(other) == []


def test_around_a_second_store_a_missing_node_that_is_dead_is_not_waited_for() -> None:
    world = World(SECOND)
    nodes = [world.add(1), world.add(2)]
    world.run(0.5)
    assert not nodes[0].running
    leader = next(n for n in nodes if n.state.leads)
    leader.handle(events.LineClosed("0.old-0"))
    world.until(lambda: world.together(*nodes), 0.5)


def test_around_a_second_store_the_dead_one_is_not_mistaken_for_another() -> None:
    """Its next incarnation has come, and one that lives is missing."""
    world = World(SECOND)
    nodes = [world.add(0), world.add(1)]
    world.run(0.5)
    leader = next(n for n in nodes if n.state.leads)
    leader.handle(events.LineClosed("0.old-0"))
    world.run(0.5)
    assert not nodes[0].running
    late = world.add(2)
    world.until(lambda: world.together(*nodes, late), 0.5)


# -- random schedules ------------------------------------------------------------------------------
LIVING = MOVES.filter(lambda m: m[0] in ("join", "wait", "fault"))
FALSE_ALARM = st.tuples(st.just("close_lines"), st.integers(0, 7))
DEATH = st.tuples(st.just("die"), st.integers(0, 7))


def play_lines(world: World, moves: list[tuple[str, float]]) -> None:
    for move, value in moves:
        alive = world.alive()
        if move == "close_lines" and alive:
            alive[int(value) % len(alive)].close_lines()
        elif move == "die" and len(alive) > 1:
            alive[int(value) % len(alive)].die()
        elif move not in ("close_lines", "die"):
            play(world, [(move, value)])


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(LIVING | FALSE_ALARM, min_size=1, max_size=14),
    seed=st.integers(0, 2**16),
    delay_s=st.sampled_from([0.002, 0.02]),
)
def test_no_node_that_beats_is_ever_dropped_whatever_its_connections_do(
    moves: list[tuple[str, float]], seed: int, delay_s: float
) -> None:
    world = World(FOUR, seed, delay_s)
    world.add(0)
    play_lines(world, moves)
    world.run(5)
    assert not {"lost", "left", "replaced"} & set(world.counts())


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(LIVING | FALSE_ALARM | DEATH, min_size=1, max_size=14),
    seed=st.integers(0, 2**16),
)
def test_after_any_schedule_of_deaths_the_living_are_in_one_membership(
    moves: list[tuple[str, float]], seed: int
) -> None:
    rules = limited(max_nodes=6, last_call_s=1.0, detection_limit_s=5.0)
    world = World(rules, seed, 0.02)
    world.add(0)
    play_lines(world, moves)
    if world.alive():
        world.until(lambda: settled(world), 60)
