"""Nodes and several coordinators in a simulated world: single stories, then random ones."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent.membership.group import Rules
from tests.launcher.agent.membership.simulation import Coordinator, Machine, Node, World

LIMIT_S = 5.0
limited = partial(Rules, detection_limit_s=LIMIT_S, growth_pause_s=0.0, last_call_s=1.0)
FENCED = limited(min_nodes=1, max_nodes=4, fence_dir="shared")
BY_MAJORITY = limited(min_nodes=1, max_nodes=5)


def formed(rules: Rules, *indexes: int, seed: int = 0) -> tuple[World, list[Node]]:
    world = World(rules, seed)
    nodes = [world.add(index) for index in indexes]
    world.until(lambda: world.together(*nodes), 15)
    return world, nodes


def serving(world: World) -> Coordinator:
    return world.served[-1]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_node_whose_process_ends_is_replaced_by_a_smaller_group_at_once(lost):
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[lost].kill()
    rest = [node for node in nodes if not node.dead]
    assert world.until(lambda: world.together(*rest), 10) <= 0.5


def test_a_node_that_loses_its_power_is_lost_after_the_limit_and_its_successor_comes_in():
    world, nodes = formed(FENCED, 0, 1, 2)
    nodes[1].lose_power()
    rest = [nodes[0], nodes[2]]
    assert LIMIT_S - 0.3 < world.until(lambda: world.together(*rest), 10) <= LIMIT_S + 0.5
    again = world.add(1)
    world.until(lambda: world.together(*rest, again), 5)


def test_a_freeze_shorter_than_the_limit_changes_nothing_and_a_longer_one_costs_a_round():
    world, nodes = formed(FENCED, 0, 1, 2)
    before = nodes[0].running
    nodes[1].frozen = True
    world.run(0.8 * LIMIT_S)
    nodes[1].wake()
    world.run(2 * LIMIT_S)
    assert nodes[0].running == before
    nodes[1].frozen = True
    world.until(lambda: world.together(nodes[0], nodes[2]), LIMIT_S + 1)
    nodes[1].wake()
    world.until(lambda: world.together(*nodes), 5)


@pytest.mark.parametrize("with_node_0", [False, True])
@pytest.mark.parametrize("rules", [FENCED, BY_MAJORITY])
def test_when_the_coordinator_dies_the_next_candidate_s_goes_on_with_who_is_left(
    rules, with_node_0
):
    world, nodes = formed(rules, 0, 1, 2)
    serving(world).dead = True
    if with_node_0:
        nodes[0].kill()
    world.run(0.3)
    rest = [node for node in nodes if not node.dead]
    assert world.until(lambda: world.together(*rest), 10) <= 1.0
    assert [one.number for one in world.served] == [0, 1]


@pytest.mark.parametrize("with_node_0", [False, True])
def test_a_frozen_coordinator_that_wakes_is_left_alone_and_finds_a_later_generation(with_node_0):
    world, nodes = formed(FENCED, 0, 1, 2)
    first, rest = serving(world), nodes[with_node_0:]
    first.frozen, nodes[0].frozen = True, with_node_0
    world.until(lambda: serving(world) is not first and world.together(*rest), LIMIT_S + 1)
    nodes[0].wake()
    first.wake()
    world.run(2 * LIMIT_S)
    assert world.together(*nodes)
    assert first.group.closed == "fenced"


# -- random schedules ----------------------------------------------------------------------------
TO_NODES = ["kill", "lose power", "freeze", "wake", "leave", "fault", "cut", "mend"]
TO_COORDINATORS = ["stop it", "freeze it", "wake it", "cut it", "mend it"]
MOVES = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 4)),
    st.tuples(st.sampled_from(TO_NODES), st.integers(0, 7)),
    st.tuples(st.sampled_from(TO_COORDINATORS), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.floats(0.01, 12.0)),
)
ENDINGS = st.tuples(st.just("finish"), st.integers(0, 7))
Moves = list[tuple[str, float]]


def play(world: World, moves: Moves) -> None:
    for move, value in moves:
        here = [node for node in world.nodes if not (node.dead or node.left or node.refused)]
        if move == "wait":
            world.run(value)
        elif move == "join":
            if int(value) not in [node.index for node in here]:
                world.add(int(value))
        else:
            served = [one for one in world.coordinators if one and not one.dead]
            machines: Sequence[Machine] = served if move in TO_COORDINATORS else here
            if machines:
                befall(machines[int(value) % len(machines)], move.removesuffix(" it"))
        world.run(0.05)


def befall(one: Machine, move: str) -> None:
    match move:
        case "stop":
            one.dead = True
        case "freeze":
            one.frozen = True
        case "cut":
            one.cut = True
        case "kill" | "lose power" | "wake" | "mend":
            getattr(one, move.replace(" ", "_"))()
        case _ if not one.frozen:
            getattr(one, move)()


def mend(world: World) -> None:
    for machine in (*world.nodes, *world.served):
        if not machine.dead:
            machine.wake()
            machine.mend()


def settled(world: World) -> bool:
    """All live nodes run together, or as many as there is room for while the others wait."""
    alive = world.alive()
    running = [node for node in alive if node.running]
    return len(running) == min(len(alive), world.rules.max_nodes) and world.together(*running)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    moves=st.lists(MOVES, min_size=1, max_size=14),
    seed=st.integers(0, 2**16),
    delay_s=st.sampled_from([0.002, 0.05, 0.4]),
)
def test_after_any_schedule_all_live_nodes_are_in_one_membership(moves, seed, delay_s):
    world = World(FENCED, seed, delay_s)
    world.add(0)
    play(world, moves)
    mend(world)
    # The candidates' nodes are started again, as schedulers do.
    for index in (0, 1):
        if index not in [node.index for node in world.alive()]:
            world.add(index)
    world.until(lambda: settled(world), 120)
    world.run(20)
    assert settled(world), "and they stay together\n" + world.story()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(moves=st.lists(MOVES | ENDINGS, min_size=3, max_size=14), seed=st.integers(0, 2**16))
def test_without_a_fence_no_two_memberships_ever_run_apart(moves, seed):
    world = World(BY_MAJORITY, seed, 0.05, candidates=3)
    for index in range(3):
        world.add(index)
    world.run(3)
    play(world, moves)
    mend(world)
    world.run(2 * LIMIT_S + 15)
    running = {node.running for node in world.alive() if node.running}
    assert len(running) <= 1, world.story()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    moves=st.lists(MOVES.filter(lambda m: m[0] in ("join", "wait", "fault")), max_size=14),
    seed=st.integers(0, 2**16),
    delay_s=st.sampled_from([0.002, 0.2, 0.8]),
)
def test_no_live_node_is_ever_dropped_while_delays_stay_below_the_limit(moves, seed, delay_s):
    world = World(FENCED, seed, delay_s)
    world.add(0)
    play(world, moves)
    world.run(20)
    assert all(not node.refused for node in world.nodes)
    assert len(world.served) == 1
    assert serving(world).group.gone == {}
